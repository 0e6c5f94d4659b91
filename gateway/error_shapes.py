"""The body of an error in the shape that clients of its path know."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from gateway.errors import Problem
from gateway.sse import data

ANTHROPIC_PATH = "/v1/messages"

_OVERLOADED = "engine_overloaded"
_ANTHROPIC_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
_OTHERS = ("invalid_request_error", "overloaded_error", "api_error")
ANTHROPIC_ERROR_TYPES = (*_ANTHROPIC_TYPES.values(), *_OTHERS)


def error_body(problem: Problem, path: str) -> bytes:
    """Print an error for whoever asked at a path; most know OpenAI's shape."""
    return anthropic_error(problem) if is_anthropic(path) else problem.body


def error_event(problem: Problem, path: str) -> bytes:
    """Print the same as the last event of a stream."""
    return (b"event: error\n" if is_anthropic(path) else b"") + data(error_body(problem, path))


def is_anthropic(path: str) -> bool:
    """Whether clients of a path know Anthropic's shapes."""
    return path == ANTHROPIC_PATH or path.startswith(f"{ANTHROPIC_PATH}/")


def anthropic_error(problem: Problem) -> bytes:
    """Print an error as Anthropic does."""
    error = {"type": _anthropic_type(problem), "message": problem.message}
    return orjson.dumps({"type": "error", "error": error})


def _anthropic_type(problem: Problem) -> str:
    if problem.status >= 500:
        return "overloaded_error" if problem.code == _OVERLOADED else "api_error"
    return _ANTHROPIC_TYPES.get(problem.status, "invalid_request_error")
