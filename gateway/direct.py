"""An application whose busiest paths are answered with nothing of the framework's between.

Of a request's way through FastAPI, Starlette and their middleware, which takes 0.1 ms, those paths need three things: a
name, a limit to the body, and an answer to what goes wrong. They are plain ASGI and have those alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.error_answers import error_response, is_foreseen
from gateway.metrics import GatewayMetrics
from gateway.middleware import BodyLimit, RequestContext


class DirectApp(FastAPI):
    """Answers POST requests of some paths by itself, and all others as FastAPI does.

    Args:
        direct: those paths, and what answers; they are routes as well, for whoever asks by another method.
        metrics: where answers are counted.
        paths: that are counted by their names.
        options: of FastAPI.
    """

    def __init__(
        self, direct: Sequence[Route], *, metrics: GatewayMetrics, paths: Sequence[str], **options: Any
    ) -> None:
        around = [Middleware(RequestContext, metrics=metrics, paths=paths), Middleware(BodyLimit)]
        super().__init__(middleware=around, **options)
        self.router.routes.extend(direct)
        self._direct = {
            route.path: RequestContext(_AnsweredErrors(BodyLimit(route.endpoint)), metrics=metrics, paths=paths)
            for route in direct
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self._direct:
            await self._direct[scope["path"]](scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


class _AnsweredErrors:
    """Answers what an endpoint raises before it has begun to answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_started = False

        def send_noted(message: Message) -> Awaitable[None]:  # no coroutine of its own: it is called for every chunk
            nonlocal is_started
            is_started = True
            return send(message)

        try:
            await self._app(scope, receive, send_noted)
        except Exception as error:
            if is_started:
                raise
            await error_response(scope["method"], scope["path"], error)(scope, receive, send)
            if not is_foreseen(error):
                raise  # the server logs it
