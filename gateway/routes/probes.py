"""How a gateway is, whatever stands behind it: `/health`, `/ready`, `/version`, `/metrics`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.version import VERSION


@dataclass(frozen=True, slots=True)
class Probes:
    """Plain Starlette endpoints: probes and scrapes come often."""

    why_not_ready: Callable[[], str | None]
    """Says why chats are not answered now; None: they are."""
    facts: Mapping[str, Any]
    """Of what runs, beside the version."""
    exposition: Callable[[], Awaitable[bytes]]
    """Prints the metrics for Prometheus."""

    def routes(self) -> list[BaseRoute]:
        """List them."""
        return [
            Route("/health", self.health),
            Route("/ready", self.ready),
            Route("/version", self.version),
            Route("/metrics", self.metrics),
        ]

    async def health(self, _: Request) -> Response:
        """Say that this process lives, whatever is behind it."""
        return json_response({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        """Say whether chats are answered now."""
        why_not = self.why_not_ready()
        return json_response({"status": why_not or "ready"}, status=503 if why_not else 200)

    async def version(self, _: Request) -> Response:
        """Say what runs."""
        return json_response({"version": VERSION, **self.facts})

    async def metrics(self, _: Request) -> Response:
        """Print the metrics for Prometheus."""
        return Response(await self.exposition(), headers={"content-type": CONTENT_TYPE_LATEST})


def json_response(value: object, *, status: int = 200) -> Response:
    """Print a value as an answer."""
    return Response(orjson.dumps(value), status, media_type="application/json")
