"""`PATCH /admin/v1/tenants/{id}` and `/keys/{id}`: limits, in force on this gateway before they are answered."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from gateway.admin_wire import LimitsBody, author_of, read_body
from gateway.routes.admin_keys import key_body, tenant_body
from gateway.storage.limit_settings import LimitSettings
from gateway.storage.store import Store

Json = dict[str, Any]


def add_limit_routes(router: APIRouter, limits: LimitSettings, store: Store) -> None:
    """Add the routes."""

    @router.patch("/tenants/{tenant}")
    async def limit_tenant(request: Request, tenant: str) -> Json:
        body = await read_body(request, LimitsBody)
        changed = await limits.change_tenant(author_of(request), tenant, body.choice)
        await store.refresh()
        return tenant_body(changed)

    @router.patch("/keys/{key_id}")
    async def limit_key(request: Request, key_id: str) -> Json:
        body = await read_body(request, LimitsBody)
        changed = await limits.change_key(author_of(request), key_id, body.choice)
        await store.refresh()
        return key_body(changed)
