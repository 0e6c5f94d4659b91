"""What can go wrong with a request, and the one table that turns it into an HTTP answer.

GatewayError
├── InvalidRequestError      the body or a field is wrong; `param` names the field
│   └── ContextLengthError   the prompt, or prompt and answer together, do not fit the model
├── ModelNotFoundError       another model than the served one
├── ModelNotAllowedError     the key is good for other models
├── BodyTooLargeError        more bytes than are read
├── AuthenticationError      no key, or a wrong one
├── AdminDisabledError       the admin API has no key set
├── CrossSiteError           a browser asks on behalf of another site's page
├── NotFoundError            the admin API knows no such tenant, key or request, the dashboard no such file
├── ConflictError            it exists already, or its state forbids this
├── RateLimitError           the tenant or key asked for all that it may, for now
├── StorageUnavailableError  the database is gone; serving goes on
├── UpstreamUnreachableError no upstream takes a request
├── UpstreamFailedError      one broke before its answer was complete
└── UpstreamTimeoutError     one took too long

Backend errors are in `gateway.backends.base`; they are rows of the table too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import orjson
from starlette.exceptions import HTTPException

from gateway.backends.base import (
    BackendFailedError,
    BackendOverloadedError,
    BackendUnavailableError,
    RequestRejectedError,
)

_MAX_SHOWN_CHARS = 60


class GatewayError(Exception):
    """Base of everything the HTTP side raises on purpose; `param` names the field at fault."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequestError(GatewayError):
    """The body or one of its fields is wrong."""


class ContextLengthError(InvalidRequestError):
    """The prompt, or prompt and answer together, are longer than the model takes."""


class ModelNotFoundError(GatewayError):
    """The request names another model than the served one."""


class ModelNotAllowedError(GatewayError):
    """The key's list of models lacks the one that the request names."""


class BodyTooLargeError(GatewayError):
    """The body has more bytes than are read."""


class AuthenticationError(GatewayError):
    """A key is needed and was not given, or is wrong."""


class AdminDisabledError(GatewayError):
    """The admin API is off, for no admin key is set."""


class CrossSiteError(GatewayError):
    """A browser's request was made by another site's page, or is not known to be made by ours."""


class NotFoundError(GatewayError):
    """What a request to the admin API or the dashboard names does not exist."""


class ConflictError(GatewayError):
    """What an admin request would make exists already, or is in a state that forbids it."""


class RateLimitError(GatewayError):
    """The tenant or key asked for all that it may, for now."""

    def __init__(
        self, message: str, *, retry_after_seconds: int = 1, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.headers = headers


class StorageUnavailableError(GatewayError):
    """The database does not answer; nothing that needs it can be done now."""

    retry_after_seconds = 5

    @property
    def cause(self) -> str:
        """What the driver said, for the operator; its first line, for the rest is advice to programmers."""
        return str(self.__cause__ or self).partition("\n")[0]


class UpstreamUnreachableError(GatewayError):
    """No upstream takes the request; it was worked on by none."""

    retry_after_seconds = 5


class UpstreamFailedError(GatewayError):
    """An upstream broke before its answer was complete."""


class UpstreamTimeoutError(GatewayError):
    """An upstream took too long for the first byte of an answer, or for the next one."""


class TooManyListenersError(GatewayError):
    """As many listen to live events as may."""

    retry_after_seconds = 5


@dataclass(frozen=True, slots=True)
class Problem:
    """An error, ready to be sent."""

    status: int
    code: str | None
    """The error in one word, where it has one."""
    message: str
    body: bytes
    """JSON in OpenAI's shape."""
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Row:
    status: int
    type: str
    code: str | None = None


_TABLE: Mapping[type[Exception], _Row] = {
    ContextLengthError: _Row(400, "invalid_request_error", "context_length_exceeded"),
    InvalidRequestError: _Row(400, "invalid_request_error"),
    AuthenticationError: _Row(401, "authentication_error", "invalid_api_key"),
    AdminDisabledError: _Row(403, "permission_error", "admin_disabled"),
    CrossSiteError: _Row(403, "permission_error", "cross_site"),
    ModelNotAllowedError: _Row(403, "permission_error", "model_not_allowed"),
    ModelNotFoundError: _Row(404, "invalid_request_error", "model_not_found"),
    NotFoundError: _Row(404, "invalid_request_error", "not_found"),
    ConflictError: _Row(409, "invalid_request_error", "conflict"),
    BodyTooLargeError: _Row(413, "invalid_request_error", "request_too_large"),
    RateLimitError: _Row(429, "rate_limit_error", "rate_limit_exceeded"),
    StorageUnavailableError: _Row(503, "server_error", "database_unavailable"),
    UpstreamUnreachableError: _Row(503, "server_error", "upstream_unreachable"),
    UpstreamFailedError: _Row(502, "server_error", "upstream_failed"),
    UpstreamTimeoutError: _Row(504, "server_error", "upstream_timeout"),
    TooManyListenersError: _Row(503, "server_error", "too_many_listeners"),
    BackendFailedError: _Row(503, "server_error", "engine_failed"),
    BackendOverloadedError: _Row(503, "server_error", "engine_overloaded"),
    BackendUnavailableError: _Row(503, "server_error", "engine_unavailable"),
    RequestRejectedError: _Row(400, "invalid_request_error"),
}
_INTERNAL = _Row(500, "server_error", "internal_error")
_ENGINE_ERROR = "engine_error"
_HTTP_CODES = {404: "unknown_path", 405: "method_not_allowed"}
_HTTP_MESSAGES = {404: "there is nothing at this path", 405: "this path does not take this method"}
_LENGTH_PARAMS = frozenset({"messages", "prompt", "max_tokens", "max_completion_tokens"})


def problem_of(error: Exception) -> Problem:
    """Look an exception up; what is not in the table is a 500 that tells nothing."""
    if isinstance(error, HTTPException):
        return _http_problem(error)
    row = next((_TABLE[kind] for kind in type(error).__mro__ if kind in _TABLE), _INTERNAL)
    message, param, code = str(error), getattr(error, "param", None), row.code
    if row is _INTERNAL:
        message = "the gateway failed on this request; its log has the details under this request id"
    if isinstance(error, RequestRejectedError):
        if param is None:
            row, code = _INTERNAL, _ENGINE_ERROR
        elif param in _LENGTH_PARAMS:
            code = "context_length_exceeded"
    return Problem(row.status, code, message, _body(message, row.type, param, code), _headers(error))


def codes_by_status(kinds: Collection[type[Exception]]) -> dict[int, set[str | None]]:
    """Group kinds of errors by the status they are answered with; what the gateway did not foresee is always among them."""
    codes: dict[int, set[str | None]] = {_INTERNAL.status: {_INTERNAL.code}}
    for kind in kinds:
        codes.setdefault(_TABLE[kind].status, set()).add(_TABLE[kind].code)
    if RequestRejectedError in kinds:
        codes[_INTERNAL.status].add(_ENGINE_ERROR)
    return codes


def shown(value: object) -> str:
    """Print a JSON value for an error message, in JSON's words and cut to a readable length."""
    if isinstance(value, str) and len(value) > _MAX_SHOWN_CHARS:
        return f"{value[:_MAX_SHOWN_CHARS]!r}… ({len(value)} long)"
    if isinstance(value, list | dict):
        kind = "an array" if isinstance(value, list) else "an object"
        return f"{kind} with {len(value)} {'entry' if len(value) == 1 else 'entries'}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)


def _http_problem(error: HTTPException) -> Problem:
    message = _HTTP_MESSAGES.get(error.status_code, error.detail)
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    code = _HTTP_CODES.get(error.status_code)
    return Problem(error.status_code, code, message, _body(message, kind, None, code), dict(error.headers or {}))


def _body(message: str, kind: str, param: str | None, code: str | None) -> bytes:
    error = {"message": message, "type": kind, "param": param, "code": code}
    return orjson.dumps({"error": error})


def _headers(error: Exception) -> dict[str, str]:
    if isinstance(
        error, BackendUnavailableError | StorageUnavailableError | UpstreamUnreachableError | TooManyListenersError
    ):
        return {"retry-after": str(error.retry_after_seconds)}
    if isinstance(error, RateLimitError):
        shown_limits = {name.decode(): value.decode() for name, value in error.headers}
        return {"retry-after": str(error.retry_after_seconds), **shown_limits}
    if isinstance(error, AuthenticationError):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, BodyTooLargeError):
        return {"connection": "close"}
    return {}
