"""Asking the engine how it is, without waiting for one that hangs."""

from __future__ import annotations

import asyncio

from gateway.backends.base import Backend, BackendSnapshot, BackendUnavailableError

SNAPSHOT_SECONDS = 2.0


async def snapshot_in_time(backend: Backend, *, seconds: float = SNAPSHOT_SECONDS) -> BackendSnapshot:
    """Ask the engine.

    Raises: BackendUnavailableError: not ready, or no answer in time.
    """
    try:
        async with asyncio.timeout(seconds):
            return await backend.snapshot()
    except TimeoutError as error:
        raise BackendUnavailableError(f"the engine did not answer within {seconds:g} s") from error
