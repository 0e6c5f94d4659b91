"""`/admin/v1/cache`: the block pool of this moment, and the options that may change while it serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request

from gateway.admin_wire import Body, author_of, read_body
from gateway.backends.base import Backend
from gateway.backends.snapshot import snapshot_in_time
from gateway.storage.audit import Author, audited
from gateway.storage.store import Store

_MAX_RESERVE = 2**31 - 1


class CacheBody(Body):
    """`PATCH /cache`: what may change while it serves."""

    max_shared_ratio: Annotated[float, Field(ge=0, le=1, strict=True, allow_inf_nan=False)] | None = None
    growth_reserve: Annotated[int, Field(ge=0, le=_MAX_RESERVE, strict=True)] | None = None


def add_cache_routes(router: APIRouter, backend: Backend, store: Store | None) -> None:
    """Add the routes."""

    @router.get("/cache")
    async def show() -> dict[str, Any]:
        """One consistent look at the block pool: total = free + cached + active."""
        snapshot = await snapshot_in_time(backend)
        return {
            **snapshot.blocks,
            "num_running": snapshot.num_running,
            "num_waiting": snapshot.num_waiting,
            "running": dict(snapshot.running),
            "waiting": dict(snapshot.waiting),
            "counters": dict(snapshot.counters),
            "options": asdict(await backend.set_cache_options()),
        }

    @router.patch("/cache")
    async def change(request: Request) -> dict[str, Any]:
        """Change the options that are given; return all."""
        options = (await read_body(request, CacheBody)).model_dump(exclude_none=True)
        return await change_cache(backend, store, author_of(request), options)


async def change_cache(
    backend: Backend, store: Store | None, author: Author, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Change options of the cache, with a note in the audit log where there is one; return all."""
    if store is None:
        return asdict(await backend.set_cache_options(**options))
    async with audited(store.database, author, "cache.change", "cache", options):
        return asdict(await backend.set_cache_options(**options))
