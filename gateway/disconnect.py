"""Reads a request's body, and runs its work until it is done or the client goes away.

Pure ASGI; knows nothing of what the work is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from starlette.types import Receive


class ClientDisconnectedError(Exception):
    """The client went away before its answer was complete."""


async def run_until_disconnect(
    work: Coroutine[Any, Any, None],
    receive: Receive,
    *,
    idle_seconds: float,
    on_idle: Callable[[], Awaitable[None]],
) -> None:
    """Run `work`; cancel it when the client disconnects.

    Args:
        work: what answers the request. Its body must have been read before.
        receive: the ASGI channel, from which only the disconnect can still come.
        idle_seconds: how often `on_idle` runs meanwhile.
        on_idle: a sign of life for the client, if one is due.

    Raises: ClientDisconnectedError: after the work was cancelled and has cleaned up.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        while True:
            done, _ = await asyncio.wait((task, gone), timeout=idle_seconds, return_when=asyncio.FIRST_COMPLETED)
            if task in done:
                return task.result()
            if gone in done:
                raise ClientDisconnectedError
            await on_idle()
    finally:
        for pending in (task, gone):
            if not pending.done():
                pending.cancel()
                with suppress(asyncio.CancelledError):
                    await pending


async def read_body(receive: Receive) -> bytes:
    """Read the whole body of a request.

    Raises: ClientDisconnectedError: before it was complete.
    """
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        return bytes(message.get("body", b""))
    pieces = []
    while True:
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)
        message = await receive()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
