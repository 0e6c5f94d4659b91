"""`/admin/v1/tenants/usage`: who asks for how much, within which limits, and whose the cache is."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from gateway.admin_wire import SpanQuery, iso_time, page_body, read_query
from gateway.auth import Identity
from gateway.limits.limiter import Limiter
from gateway.storage.history import HistorySpan
from gateway.storage.store import Store
from gateway.storage.usage import usage_by_tenant

Json = dict[str, Any]


def add_usage_route(router: APIRouter, store: Store, limiter: Limiter) -> None:
    """Add the route; before that of one tenant, which would take `usage` for a name."""

    @router.get("/tenants/usage")
    async def usage(request: Request) -> Json:
        """Sums of whole hours; limits and the cache as they are now."""
        since, until = read_query(request, SpanQuery).bounds(time.time())
        await store.log.flush()
        rows = await usage_by_tenant(store.database, HistorySpan(since, until))
        return page_body([_tenant(row, limiter) for row in rows], None)


def _tenant(row: Json, limiter: Limiter) -> Json:
    in_force = limiter.used(Identity(row["id"]))
    prompt, cached = row["num_prompt_tokens"], row["num_cached_tokens"]
    return {
        "tenant": row["id"],
        "name": row["name"],
        "requests": row["num_requests"],
        "errors": row["num_errors"],
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "output_tokens": row["num_output_tokens"],
        "hit_rate": cached / prompt if prompt else None,
        "limits": {name: use.limit for name, use in in_force.items()},
        "used": {name: use.used for name, use in in_force.items()},
        "cache_blocks": None,
        "cache_share": None,
        "last_used_at": iso_time(row["last_used_at"]),
    }
