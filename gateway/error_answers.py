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

_FORESEEN = (GatewayError, BackendError, HTTPException)


def answer_errors(app: Starlette, routes: Sequence[BaseRoute]) -> None:
    """Have an application answer errors in the shape of the provider whose path was asked."""

    async def answer(request: Request, error: Exception) -> Response:
        response = error_response(request.method, request.url.path, error)
        if response.status_code == 405:
            response.headers["allow"] = ", ".join(sorted(_methods(routes, request.scope)))
        if not is_foreseen(error):
            # Unforeseen errors are answered outside of the middleware that names requests.
            response.headers["x-request-id"] = request.scope["state"]["request_id"]
        return response

    for kind in (*_FORESEEN, Exception):
        app.add_exception_handler(kind, answer)


def is_foreseen(error: Exception) -> bool:
    """Whether it is in the table of errors; others are mistakes of ours."""
    return isinstance(error, _FORESEEN)


def error_response(method: str, path: str, error: Exception) -> Response:
    """Make the answer to a request that failed."""
    problem = problem_of(error)
    headers = dict(problem.headers)
    if isinstance(error, StorageUnavailableError):
        logger.warning("%s %s: %s: %s", method, path, error, error.cause)
    if problem.status == 500:
        headers["connection"] = "close"  # uvicorn closes after an unforeseen error, and the client should know
    return Response(error_body(problem, path), problem.status, headers, media_type="application/json")


def _methods(routes: Sequence[BaseRoute], scope: Scope) -> set[str]:
    """All that a path takes: the route that refuses names only its own. One of this very path beats one of many."""
    matching = [route for route in routes if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE]
    exact = [route for route in matching if "{" not in route.path]
    return {method for route in exact or matching for method in route.methods or ()}
