"""`/admin/v1`: what the operator sees and changes. Every route needs the admin key."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header

from gateway.auth import Authenticator
from gateway.backends.base import Backend
from gateway.routes.admin_keys import add_key_routes, add_tenant_routes
from gateway.routes.admin_requests import add_request_routes
from gateway.routes.snapshot import snapshot_in_time
from gateway.settings import Settings
from gateway.storage.store import Store


def admin_router(backend: Backend, authenticator: Authenticator, settings: Settings, store: Store | None) -> APIRouter:
    """Build the routes; those of a store only where there is one."""

    async def check_key(authorization: Annotated[str | None, Header()] = None) -> None:
        authenticator.check_admin(authorization)

    router = APIRouter(prefix="/admin/v1", dependencies=[Depends(check_key)])

    @router.get("/cache")
    async def cache() -> dict[str, int | dict[str, int]]:
        """One consistent look at the block pool: total = free + cached + active."""
        snapshot = await snapshot_in_time(backend)
        return {
            **snapshot.blocks,
            "num_running": snapshot.num_running,
            "num_waiting": snapshot.num_waiting,
            "counters": dict(snapshot.counters),
        }

    @router.get("/config")
    async def config() -> dict[str, Any]:
        """Every option as it is in force, secrets masked."""
        return settings.shown()

    if store is not None:
        # Not included as routers of their own: those hide their paths, which are the labels of the metrics.
        add_tenant_routes(router, store)
        add_key_routes(router, store)
        add_request_routes(router, store)
    return router
