"""What surrounds every request: its id, the limit of its body, and the count of its answer. Pure ASGI."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.error_shapes import is_anthropic
from gateway.errors import BodyTooLargeError
from gateway.ids import RandomIds
from gateway.log import REQUEST_ID
from gateway.metrics import GatewayMetrics
from gateway.request_entry import CLIENT_GONE

MAX_BODY_BYTES = 10_000_000

_REQUEST_ID = re.compile(r"(?!export$)[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
"""It stands in paths of the admin API: no `..`, and not the name of another path."""
_MAX_LENGTH_DIGITS = 20


class RequestContext:
    """Names each request, in `scope["state"]["request_id"]` and in the answer, and counts the answer."""

    def __init__(self, app: ASGIApp, *, metrics: GatewayMetrics, paths: Collection[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = frozenset(paths)
        self._ids = RandomIds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wrap one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = self._request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        # For every line of the log from here on, the server's own last ones too; a request has a task of its own.
        REQUEST_ID.set(request_id)
        endpoint = scope["path"] if scope["path"] in self._paths else "other"
        status, is_complete = CLIENT_GONE, False

        def send_named(message: Message) -> Awaitable[None]:  # no coroutine of its own: it is called for every chunk
            nonlocal status, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.append("x-request-id", request_id)
                if is_anthropic(scope["path"]):
                    headers.setdefault("request-id", request_id)  # where their SDK looks; an upstream may have said it
            elif not message.get("more_body", False):
                is_complete = True
                # Before it is sent, so that whoever has the answer finds it counted.
                self._metrics.count_request(endpoint, status)
            return send(message)

        try:
            await self._app(scope, receive, send_named)
        except Exception:
            if not is_complete:
                is_complete = True
                self._metrics.count_request(endpoint, 500)
            raise
        finally:
            if not is_complete:
                self._metrics.count_request(endpoint, CLIENT_GONE)

    def _request_id(self, scope: Scope) -> str:
        """Keep the client's id where it is harmless in a header and in a log."""
        given = Headers(scope=scope).get("x-request-id")
        if given is not None and _REQUEST_ID.fullmatch(given):
            return given
        return f"req-{self._ids.next()}"


class BodyLimit:
    """Refuses bodies that are too large: by their announced length, or while they are read."""

    def __init__(self, app: ASGIApp, *, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wrap one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "0")
        num_announced = int(announced) if announced.isdecimal() and len(announced) < _MAX_LENGTH_DIGITS else 0
        num_read = 0

        async def receive_limited() -> Message:
            # Raised from here, where the endpoint reads, an error takes the way of all errors of endpoints.
            nonlocal num_read
            self._check(num_announced)
            message = await receive()
            num_read += len(message.get("body", b""))
            self._check(num_read)
            return message

        await self._app(scope, receive_limited, send)

    def _check(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise BodyTooLargeError(f"the body is too large, wanted at most {self._max_bytes} bytes")
