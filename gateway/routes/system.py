"""What an engine serves, and how it is: `/v1/models`, and the probes."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.auth import Authenticator
from gateway.backends.base import Backend, BackendSnapshot, BackendUnavailableError
from gateway.backends.snapshot import snapshot_in_time
from gateway.errors import ModelNotFoundError, shown
from gateway.metrics import GatewayMetrics
from gateway.prompts.warming import Warmer
from gateway.routes.probes import Probes, json_response


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
            *Probes(self._why_not_ready, {"model": self._model_name}, self._exposition).routes(),
        ]

    async def models(self, request: Request) -> Response:
        """List the one model."""
        identity = self._authenticator.identify(request.headers)
        may_use = identity.models is None or self._model_name in identity.models
        return json_response({"object": "list", "data": [self._model()] if may_use else []})

    async def model(self, request: Request) -> Response:
        """Describe one model."""
        identity = self._authenticator.identify(request.headers)
        name = request.path_params["model_id"]
        if name != self._model_name:
            raise ModelNotFoundError(f"model: got {shown(name)}, wanted {self._model_name!r}", param="model")
        identity.check_model(name)
        return json_response(self._model())

    def _why_not_ready(self) -> str | None:
        """Chats are answered, and registered prompts had their time to be warmed."""
        if not self._backend.ready():
            return self._backend.state()
        is_settled = self._warmer is None or self._warmer.is_settled()
        return None if is_settled else "warming registered prompts"

    async def _exposition(self) -> bytes:
        snapshot = await self._snapshot()
        block_size = self._backend.model_info().block_size if self._backend.ready() else None
        return self._metrics.exposition(snapshot, block_size)

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
