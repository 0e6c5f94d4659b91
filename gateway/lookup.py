"""Endpoints that answer from a body alone, without the engine: who asks, what came, and one JSON back."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.auth import Identity
from gateway.disconnect import ClientDisconnectedError, read_body
from gateway.serving import Services

logger = logging.getLogger(__name__)

Answer = Callable[[bytes, Identity], Awaitable[dict[str, Any]]]
"""Gives the answer to a body.

Raises: GatewayError: there is none.
"""


class Lookup:
    """One such endpoint, a plain ASGI application."""

    def __init__(self, services: Services, answer: Answer) -> None:
        self._services = services
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        identity = self._services.authenticator.identify(Headers(scope=scope))
        try:
            body = await read_body(receive)
        except ClientDisconnectedError:
            logger.info("client gone")
            return
        answer = await self._answer(body, identity)
        await Response(orjson.dumps(answer), media_type="application/json")(scope, receive, send)
