"""A real uvicorn in the test's own event loop, for what only a socket shows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI

from gateway.protocol import HttpProtocol


@contextlib.asynccontextmanager
async def running(app: FastAPI) -> AsyncIterator[int]:
    """Serve on a free port of this machine; the port comes out."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, http=HttpProtocol, ws="none", log_config=None)
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign] -- signals are pytest's
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


async def until(condition: object, *, seconds: float = 10.0) -> None:
    """Wait for something that happens elsewhere."""
    async with asyncio.timeout(seconds):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.005)
