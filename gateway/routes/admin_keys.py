"""`/admin/v1/tenants`, `/keys` and `/audit`."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from gateway.admin_wire import (
    ExpireBody,
    KeysQuery,
    NewKeyBody,
    NewTenantBody,
    NumberedPageQuery,
    PageQuery,
    RotateBody,
    author_of,
    future,
    iso_time,
    page_body,
    read_body,
    read_query,
)
from gateway.storage.audit import list_audit
from gateway.storage.keys import ApiKey, NewKey
from gateway.storage.store import Store
from gateway.storage.tenants import Tenant

Json = dict[str, Any]


def add_tenant_routes(router: APIRouter, store: Store) -> None:
    """Add the routes of tenants, and of the audit log."""

    @router.post("/tenants", status_code=201)
    async def create_tenant(request: Request) -> Json:
        body = await read_body(request, NewTenantBody)
        return tenant_body(await store.tenants.create(author_of(request), body.name))

    @router.get("/tenants")
    async def list_tenants(request: Request) -> Json:
        page = await store.tenants.list(read_query(request, PageQuery).span)
        return page_body([tenant_body(tenant) for tenant in page.entries], page.next_cursor)

    @router.get("/tenants/{tenant}")
    async def show_tenant(tenant: str) -> Json:
        return tenant_body(await store.tenants.find(tenant))

    @router.get("/audit")
    async def audit(request: Request) -> Json:
        page = await list_audit(store.database, read_query(request, NumberedPageQuery).span)
        entries = [asdict(entry) | {"created_at": iso_time(entry.created_at)} for entry in page.entries]
        return page_body(entries, page.next_cursor)


def add_key_routes(router: APIRouter, store: Store) -> None:
    """Add the routes of keys. What changes one is in force on this gateway before it is answered."""

    @router.post("/keys", status_code=201)
    async def create_key(request: Request) -> Json:
        body = await read_body(request, NewKeyBody)
        made = await store.keys.create(
            author_of(request),
            body.tenant,
            name=body.name,
            expires_at=future("expires_at", body.expires_at, time.time()),
            models=body.models,
        )
        await store.ring.refresh()
        return _new_key(made)

    @router.get("/keys")
    async def list_keys(request: Request) -> Json:
        query = read_query(request, KeysQuery)
        page = await store.keys.list(query.span, tenant=query.tenant)
        return page_body([key_body(key) for key in page.entries], page.next_cursor)

    @router.get("/keys/{key_id}")
    async def show_key(key_id: str) -> Json:
        return key_body(await store.keys.find(key_id))

    @router.post("/keys/{key_id}/rotate", status_code=201)
    async def rotate_key(request: Request, key_id: str) -> Json:
        body = await read_body(request, RotateBody)
        made = await store.keys.rotate(author_of(request), key_id, grace_seconds=body.grace_seconds)
        await store.refresh()  # the limits too, which the new key has from the old one
        return _new_key(made)

    @router.post("/keys/{key_id}/expire")
    async def expire_key(request: Request, key_id: str) -> Json:
        body = await read_body(request, ExpireBody)
        expires_at = future("expires_at", body.expires_at, time.time())
        key = await store.keys.expire(author_of(request), key_id, expires_at)
        await store.ring.refresh()
        return key_body(key)

    @router.post("/keys/{key_id}/revoke")
    @router.delete("/keys/{key_id}")
    async def revoke_key(request: Request, key_id: str) -> Json:
        key = await store.keys.revoke(author_of(request), key_id)
        await store.ring.refresh()
        return key_body(key)


def tenant_body(tenant: Tenant) -> Json:
    """Print a tenant."""
    return {
        "id": tenant.id,
        "name": tenant.name,
        "limits": tenant.limits or {},
        "created_at": iso_time(tenant.created_at),
    }


def _new_key(made: NewKey) -> Json:
    """The one time that the key itself is shown."""
    return {"id": made.record.id, "key": made.secret} | key_body(made.record)


def key_body(key: ApiKey) -> Json:
    """Print a key, but for the secret."""
    return {
        "id": key.id,
        "tenant": key.tenant_id,
        "name": key.name,
        "hint": f"…{key.hint}",
        "models": key.models,
        "limits": key.limits or {},
        "state": key.state(time.time()),
        "replaces": key.replaces,
        "created_at": iso_time(key.created_at),
        "expires_at": iso_time(key.expires_at),
        "revoked_at": iso_time(key.revoked_at),
    }
