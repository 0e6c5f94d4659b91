from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import APIRouter, Depends
from pydantic import SecretStr
from starlette.requests import Request

from gateway.auth import Authenticator, NoKeys
from gateway.dashboard.routes import Dashboard
from gateway.dashboard.session import Sessions
from gateway.direct import DirectApp
from gateway.metrics import GatewayMetrics
from tests.gateway.dashboard.support import ADMIN_KEY, ORIGIN


@pytest.fixture
async def browser() -> AsyncIterator[httpx.AsyncClient]:
    """In front of the dashboard and an admin API of one path, which names who asked; it keeps cookies."""
    key = SecretStr(ADMIN_KEY)
    dashboard = Dashboard(Authenticator(NoKeys(), host="127.0.0.1", admin_key=key), Sessions(key), store=None)
    admin = APIRouter(prefix="/admin/v1", dependencies=[Depends(dashboard.access.check)])

    @admin.api_route("/thing", methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"])
    async def thing(request: Request) -> str:
        return str(request.scope["state"].get("operator", "admin"))

    metrics = GatewayMetrics()
    app = DirectApp([], dashboard.routes(), admin, metrics=metrics, lifespan=None)  # type: ignore[arg-type]
    app.state.metrics = metrics
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as client:
        yield client
