"""What every answer under `/dashboard` forbids the browser, and that none of the admin API is kept. Pure ASGI."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_POLICY: Mapping[str, str] = {
    "default-src": "'none'",
    "script-src": "'self'",
    # plotly sets style attributes and fills two <style> elements, one with text that changes with its version: without
    # this its labels and layers lie on top of each other, and the console is full of errors.
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data: blob:",
    "connect-src": "'self'",
    "font-src": "'none'",
    "base-uri": "'none'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}
_HEADERS: Mapping[str, str] = {
    "content-security-policy": "; ".join(f"{name} {sources}" for name, sources in _POLICY.items()),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}


_ADMIN_HEADERS: Mapping[str, str] = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
"""Whatever an answer says itself: bodies of clients and new keys are among them."""


class OperatorHeaders:
    """Adds them; nothing is kept by the browser but what says so itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wrap one request."""
        path = scope["path"] if scope["type"] == "http" else ""
        is_of_page = path == "/dashboard" or path.startswith("/dashboard/")
        if not is_of_page and not path.startswith("/admin/"):
            await self._app(scope, receive, send)
            return

        def send_guarded(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS if is_of_page else _ADMIN_HEADERS)
                headers.setdefault("cache-control", "no-store")
            return send(message)

        await self._app(scope, receive, send_guarded)
