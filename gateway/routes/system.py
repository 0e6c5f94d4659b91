"""What runs here and how it is: `/v1/models`, `/health`, `/ready`, `/version`, `/metrics`."""

from __future__ import annotations

import time

import orjson
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.auth import Authenticator
from gateway.backends.base import Backend, BackendSnapshot, BackendUnavailableError
from gateway.errors import ModelNotFoundError, shown
from gateway.metrics import GatewayMetrics
from gateway.prompts.warming import Warmer
from gateway.routes.snapshot import snapshot_in_time
from gateway.version import VERSION


class SystemRoutes:
    """Plain Starlette endpoints: probes and scrapes come often."""

    def __init__(
        self,
        backend: Backend,
        authenticator: Authenticator,
        metrics: GatewayMetrics,
        model_name: str,
        warmer: Warmer | None = None,
    ) -> None:
        self._backend = backend
        self._authenticator = authenticator
        self._metrics = metrics
        self._model_name = model_name
        self._warmer = warmer
        self._created = int(time.time())

    def routes(self) -> list[BaseRoute]:
        """List them."""
        return [
            Route("/v1/models", self.models),
            Route("/v1/models/{model_id:path}", self.model),
            Route("/health", self.health),
            Route("/ready", self.ready),
            Route("/version", self.version),
            Route("/metrics", self.metrics),
        ]

    async def models(self, request: Request) -> Response:
        """List the one model."""
        identity = self._authenticator.identify(request.headers)
        may_use = identity.models is None or self._model_name in identity.models
        return _json({"object": "list", "data": [self._model()] if may_use else []})

    async def model(self, request: Request) -> Response:
        """Describe one model."""
        identity = self._authenticator.identify(request.headers)
        name = request.path_params["model_id"]
        if name != self._model_name:
            raise ModelNotFoundError(f"model: got {shown(name)}, wanted {self._model_name!r}", param="model")
        identity.check_model(name)
        return _json(self._model())

    async def health(self, _: Request) -> Response:
        """Say that this process lives, whatever the engine does."""
        return _json({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        """Say whether chats are answered now, and registered prompts had their time to be warmed."""
        if self._backend.ready():
            if self._warmer is None or self._warmer.is_settled():
                return _json({"status": "ready"})
            return _json({"status": "warming registered prompts"}, status=503)
        return _json({"status": self._backend.state()}, status=503)

    async def version(self, _: Request) -> Response:
        """Say what runs."""
        return _json({"version": VERSION, "model": self._model_name})

    async def metrics(self, _: Request) -> Response:
        """Print the metrics for Prometheus."""
        snapshot = await self._snapshot()
        block_size = self._backend.model_info().block_size if self._backend.ready() else None
        return Response(self._metrics.exposition(snapshot, block_size), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _snapshot(self) -> BackendSnapshot | None:
        try:
            return await snapshot_in_time(self._backend)
        except BackendUnavailableError:
            return None

    def _model(self) -> dict[str, str | int]:
        model: dict[str, str | int] = {
            "id": self._model_name,
            "object": "model",
            "created": self._created,
            "owned_by": "prefixgate",
        }
        if self._backend.ready():
            model["max_model_len"] = self._backend.model_info().max_model_len
        return model


def _json(value: object, *, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")
