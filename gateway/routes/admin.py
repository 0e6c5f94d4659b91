"""`/admin/v1`: what the operator sees and changes. Every route needs the admin key."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header

from gateway.auth import Authenticator
from gateway.backends.base import Backend
from gateway.recent import RecentRequests
from gateway.routes.admin_cache import cache_router
from gateway.routes.admin_requests import requests_router


def admin_router(backend: Backend, authenticator: Authenticator, recent: RecentRequests) -> APIRouter:
    """Build the routes."""

    async def check_key(authorization: Annotated[str | None, Header()] = None) -> None:
        authenticator.check_admin(authorization)

    router = APIRouter(prefix="/admin/v1", dependencies=[Depends(check_key)])

    router.include_router(cache_router(backend))
    router.include_router(requests_router(backend, recent))
    return router
