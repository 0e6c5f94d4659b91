"""`/admin/v1`: what the operator sees. Every route needs the admin key."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header

from gateway.auth import Authenticator
from gateway.backends.base import Backend
from gateway.routes.snapshot import snapshot_in_time


def admin_router(backend: Backend, authenticator: Authenticator) -> APIRouter:
    """Build the routes."""

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

    return router
