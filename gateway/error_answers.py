"""Turns what endpoints raise into answers, by the one table of errors."""

from __future__ import annotations

import logging

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.backends.base import BackendError
from gateway.error_shapes import error_body
from gateway.errors import GatewayError, StorageUnavailableError, problem_of

logger = logging.getLogger(__name__)

_FORESEEN = (GatewayError, BackendError, HTTPException)


def answer_errors(app: Starlette) -> None:
    """Have an application answer errors in the shape of the provider whose path was asked."""
    for kind in (*_FORESEEN, Exception):
        app.add_exception_handler(kind, _answer_error)


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


async def _answer_error(request: Request, error: Exception) -> Response:
    response = error_response(request.method, request.url.path, error)
    if not is_foreseen(error):
        # Unforeseen errors are answered outside of the middleware that names requests.
        response.headers["x-request-id"] = request.scope["state"]["request_id"]
    return response
