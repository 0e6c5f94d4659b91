"""Reads a request's body, and runs its work until it is done or the client goes away.

Pure ASGI; knows nothing of what the work is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
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
    """Run `work` in this task; cancel it when the client disconnects.

    Args:
        work: what answers the request. Its body must have been read before.
        receive: the ASGI channel, from which only the disconnect can still come.
        idle_seconds: how often `on_idle` runs meanwhile.
        on_idle: a sign of life for the client, if one is due.

    Raises: ClientDisconnectedError: after the work was cancelled and has cleaned up.
    """
    task = asyncio.current_task()
    assert task is not None
    is_over = False

    def leave(_: object) -> None:
        if not is_over:  # else what comes after the work would be cancelled
            task.cancel()

    watcher = asyncio.create_task(_watch(receive, idle_seconds, on_idle))
    watcher.add_done_callback(leave)
    try:
        await work
    except asyncio.CancelledError:
        if watcher.done() and task.uncancel() == 0:  # by us, and by nobody else
            raise watcher.exception() or ClientDisconnectedError from None
        raise
    finally:
        is_over = True
        watcher.cancel()


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


async def _watch(receive: Receive, idle_seconds: float, on_idle: Callable[[], Awaitable[None]]) -> None:
    """End when the client disconnects."""
    while True:
        try:
            async with asyncio.timeout(idle_seconds):
                while (await receive())["type"] != "http.disconnect":
                    pass
            return
        except TimeoutError:
            await on_idle()
