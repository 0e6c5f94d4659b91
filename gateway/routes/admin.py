"""`/admin/v1`: what the operator sees and changes. Every route needs the admin key."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header

from gateway.auth import Authenticator
from gateway.backends.base import Backend
from gateway.recent import RecentRequests
from gateway.routes.admin_blocks import add_block_routes
from gateway.routes.admin_cache import add_cache_routes


def admin_router(backend: Backend, authenticator: Authenticator, recent: RecentRequests) -> APIRouter:
    """Build the routes."""

    async def check_key(authorization: Annotated[str | None, Header()] = None) -> None:
        authenticator.check_admin(authorization)

    router = APIRouter(prefix="/admin/v1", dependencies=[Depends(check_key)])

    # Not included as routers of their own: those hide their paths, which are the labels of the metrics.
    add_cache_routes(router, backend)
    add_block_routes(router, backend, recent)
    return router
