"""An application whose busiest paths are answered with nothing of the framework's between.

Of a request's way through FastAPI, Starlette and their middleware, which takes 0.1 ms, those paths need three things: a
name, a limit to the body, and an answer to what goes wrong. They are plain ASGI and have those alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from fastapi import APIRouter, FastAPI
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send

from gateway.dashboard.headers import OperatorHeaders
from gateway.error_answers import answer_errors, error_response, is_foreseen
from gateway.metrics import GatewayMetrics
from gateway.middleware import BodyLimit, RequestContext
from gateway.version import VERSION


class DirectApp(FastAPI):
    """Answers POST requests of some paths by itself, and all others as FastAPI does.

    Args:
        direct: those paths, and what answers; they are routes as well, for whoever asks by another method.
        routes: the others.
        admin: of the admin API.
        metrics: where answers are counted, by their routes.
        lifespan: what is begun and ended with it.
    """

    def __init__(
        self,
        direct: Sequence[Route],
        routes: Sequence[BaseRoute],
        admin: APIRouter,
        *,
        metrics: GatewayMetrics,
        lifespan: Lifespan[FastAPI],
    ) -> None:
        served = [*direct, *routes, *admin.routes]
        paths = [route.path for route in served if isinstance(route, Route) and "{" not in route.path]
        super().__init__(
            middleware=[
                Middleware(RequestContext, metrics=metrics, paths=paths),
                Middleware(OperatorHeaders),
                Middleware(BodyLimit),
            ],
            title="prefixgate",
            version=VERSION,
            lifespan=lifespan,
            openapi_url=None,  # with it go the pages that show it, which load scripts from elsewhere
            redirect_slashes=False,  # it would send clients wherever their own Host header says
        )
        self.router.routes.extend([*direct, *routes])
        self.include_router(admin)
        answer_errors(self, served)
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
