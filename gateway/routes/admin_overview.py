"""`/admin/v1/overview`, at once or again and again: `/admin/v1/live`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.admin_wire import iso_time
from gateway.disconnect import ClientDisconnectedError, run_until_disconnect
from gateway.errors import GatewayError
from gateway.live import Live
from gateway.overview import Overview
from gateway.routes.probes import json_response
from gateway.sse import EventStream, data

SEND_SECONDS = 10.0
"""For which a listener may take nothing; then it is cut off."""
_LOOK_SECONDS = 60.0
_EVENT = b"event: overview\n"

Allow = Callable[[Request], None]
"""Lets an operator pass. Raises: GatewayError: not, or no longer."""


def live_overview(overview: Overview) -> Live:
    """Make what tells listeners of a gateway."""

    async def compute() -> bytes:
        return _EVENT + data(orjson.dumps(_printed(await overview.read())))

    return Live(compute)


def add_overview_routes(router: APIRouter, overview: Overview, live: Live, allow: Allow) -> None:
    """Add the routes; `allow` is asked again before each event."""

    @router.get("/overview")
    async def show() -> Response:
        """Everything at a glance."""
        return json_response(_printed(await overview.read()))

    @router.get("/live")
    async def listen(request: Request) -> Response:
        """The same as server-sent events, every two seconds."""
        return LiveEvents(live, lambda: allow(request))


class LiveEvents(Response):
    """An event stream that ends with the client, with the right to read it, or with the gateway."""

    def __init__(self, live: Live, check: Callable[[], None]) -> None:
        super().__init__()
        self._live = live
        self._check = check

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Send until it ends. Raises: TooManyListenersError: before the first byte."""
        work = self._send(EventStream(send, time.monotonic))
        with suppress(ClientDisconnectedError):
            await run_until_disconnect(work, receive, idle_seconds=_LOOK_SECONDS, on_idle=_say_nothing)

    async def _send(self, stream: EventStream) -> None:
        is_open = False
        async with aclosing(self._live.listen()) as frames:
            async for frame in frames:
                if not self._is_allowed():
                    break
                with suppress(TimeoutError):
                    async with asyncio.timeout(SEND_SECONDS):
                        if not is_open:
                            await stream.start([])
                            is_open = True
                        await stream.write(frame)
                        continue
                return  # whoever reads nothing will not read an end either
        if not is_open:
            await stream.start([])
        await stream.close(b"")

    def _is_allowed(self) -> bool:
        try:
            self._check()
        except GatewayError:
            return False
        return True


async def _say_nothing() -> None:
    """The events are sign of life enough."""


def _printed(overview: dict[str, Any]) -> dict[str, Any]:
    return overview | {name: iso_time(overview[name]) for name in ("at", "started_at")}
