"""What the upstreams serve, and how the gateway in front of them is: `/v1/models`, and the probes."""

from __future__ import annotations

import asyncio

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.auth import Authenticator, Identity
from gateway.errors import UpstreamFailedError, UpstreamTimeoutError
from gateway.routes.probes import Probes
from gateway.upstream.connection import TransportError
from gateway.upstream.headers import forwarded, returned
from gateway.upstream.metrics import UpstreamMetrics
from gateway.upstream.pool import UpstreamPool, check_no_redirect

_MODELS_SECONDS = 30.0


class UpstreamSystemRoutes:
    """Plain Starlette endpoints."""

    def __init__(self, pool: UpstreamPool, authenticator: Authenticator, metrics: UpstreamMetrics) -> None:
        self._pool = pool
        self._authenticator = authenticator
        self._metrics = metrics

    def routes(self) -> list[BaseRoute]:
        """List them."""
        return [
            Route("/v1/models", self.models),
            Route("/v1/models/{model_id:path}", self.model),
            *Probes(self._why_not_ready, {"upstreams": len(self._pool.upstreams)}, self._exposition).routes(),
        ]

    async def models(self, request: Request) -> Response:
        """Pass on the list of an upstream; a key for some models sees those."""
        identity = self._authenticator.identify(request.headers)
        answer = await self._pass_on(request, "/v1/models")
        if identity.models is not None and answer.status_code == 200:
            return Response(_visible(bytes(answer.body), identity), media_type="application/json")
        return answer

    async def model(self, request: Request) -> Response:
        """Pass on what an upstream says of a model."""
        name = request.path_params["model_id"]
        self._authenticator.identify(request.headers).check_model(name)
        # As it came: what is quoted in it is the upstream's to read.
        path = request.scope.get("raw_path", b"").partition(b"?")[0].decode("ascii")
        return await self._pass_on(request, path)

    def _why_not_ready(self) -> str | None:
        return None if self._pool.ready() else self._pool.state()

    async def _exposition(self) -> bytes:
        return self._metrics.gateway.exposition(None)

    async def _pass_on(self, request: Request, path: str) -> Response:
        request_id: str = request.scope["state"]["request_id"]
        raw = request.scope["headers"]
        try:
            async with asyncio.timeout(_MODELS_SECONDS):
                _, response = await self._pool.send(
                    self._pool.order(b""),
                    "GET",
                    path,
                    lambda upstream: forwarded(raw, request_id, upstream.own_headers),
                    b"",
                )
                try:
                    check_no_redirect(response.status)
                    body = b"".join([piece async for piece in response.pieces()])
                finally:
                    response.close()
        except TransportError as error:
            raise UpstreamFailedError("the upstream broke before its answer was complete") from error
        except TimeoutError as error:
            raise UpstreamTimeoutError("the upstream took too long to answer") from error
        answer = Response(body, response.status)
        answer.raw_headers += returned(response.raw_headers)
        return answer


def _visible(body: bytes, identity: Identity) -> bytes:
    """Leave the models in a list that a key may use.

    Raises: UpstreamFailedError: it is no list of models.
    """
    try:
        listing = orjson.loads(body)
        allowed = identity.models or frozenset()
        return orjson.dumps({**listing, "data": [model for model in listing["data"] if model["id"] in allowed]})
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise UpstreamFailedError("the upstream's list of models cannot be read") from error
