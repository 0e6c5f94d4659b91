"""Turns what endpoints raise into answers, by the one table of errors."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from gateway.backends.base import BackendError
from gateway.error_shapes import error_body
from gateway.errors import GatewayError, StorageUnavailableError, problem_of

logger = logging.getLogger(__name__)


def answer_errors(app: Starlette, routes: Sequence[BaseRoute]) -> None:
    """Have an application answer errors in the shape of the provider whose path was asked."""

    async def answer(request: Request, error: Exception) -> Response:
        problem = problem_of(error)
        headers = {name.lower(): value for name, value in problem.headers.items()}
        if isinstance(error, StorageUnavailableError):
            logger.warning("%s %s: %s: %s", request.method, request.url.path, error, error.cause)
        if problem.status == 405:
            headers["allow"] = ", ".join(sorted(_methods(routes, request.scope)))
        if problem.status == 500:
            headers["connection"] = "close"  # uvicorn closes after an unforeseen error, and the client should know
            if not isinstance(error, BackendError):
                # Unforeseen errors are answered outside of the middleware that names requests.
                headers["x-request-id"] = request.scope["state"]["request_id"]
        body = error_body(problem, request.url.path)
        return Response(body, problem.status, headers, media_type="application/json")

    for kind in (GatewayError, BackendError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)


def _methods(routes: Sequence[BaseRoute], scope: Scope) -> set[str]:
    """All that a path takes: the route that refuses names only its own."""
    matching = (route for route in routes if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE)
    return {method for route in matching for method in route.methods or ()}
