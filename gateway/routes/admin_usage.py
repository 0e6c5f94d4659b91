"""`/admin/v1/usage/tenants`: who asks for how much, within which limits, and whose the cache is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from gateway.admin_wire import SpanQuery, iso_time, page_body, read_query
from gateway.auth import Identity
from gateway.backends.base import Backend, BackendUnavailableError
from gateway.backends.snapshot import SNAPSHOT_SECONDS
from gateway.cache_shares import cache_shares
from gateway.limits.limiter import Limiter
from gateway.storage.history import HistorySpan
from gateway.storage.store import Store
from gateway.storage.usage import usage_by_tenant

Json = dict[str, Any]

_PUBLIC, _OTHER = "public", "other"
"""In the place of a tenant: blocks that all share, and those of whom nobody knows. No tenant's id is like these."""


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Whose the blocks of the pool are, by tenant and, where there are any, of `_PUBLIC` and `_OTHER`."""

    by_owner: dict[str, int]
    num_blocks: int

    def shown(self, owner: str) -> Json:
        """Print an owner's."""
        count = self.by_owner.get(owner, 0)
        return {"cache_blocks": count, "cache_share": count / self.num_blocks}


def add_usage_route(router: APIRouter, store: Store, limiter: Limiter, backend: Backend | None) -> None:
    """Add the route; before that of one tenant, which would take `usage` for a name."""

    @router.get("/usage/tenants")
    async def usage(request: Request) -> Json:
        """Sums of whole hours; limits and the cache as they are now."""
        since, until = read_query(request, SpanQuery).bounds(time.time())
        await store.log.flush()
        rows = await usage_by_tenant(store.database, HistorySpan(since, until))
        blocks = None if backend is None else await _blocks(backend, [row["id"] for row in rows])
        shown = [_tenant(row, limiter) | _shown(blocks, row["id"]) for row in rows]
        if blocks is not None:
            shown += [_nobody(owner) | blocks.shown(owner) for owner in (_PUBLIC, _OTHER) if owner in blocks.by_owner]
        return page_body(shown, None)


async def _blocks(backend: Backend, tenants: Iterable[str]) -> _Blocks | None:
    """Ask the engine; None: it does not answer."""
    with suppress(BackendUnavailableError, TimeoutError):
        async with asyncio.timeout(SNAPSHOT_SECONDS):
            shares = await cache_shares(backend, tenants)
        others = {name: count for name, count in ((_PUBLIC, shares.public), (_OTHER, shares.other)) if count}
        config = backend.model_info().cache
        if config is not None:
            return _Blocks({**shares.by_tenant, **others}, config.num_blocks)
    return None


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
        "last_used_at": iso_time(row["last_used_at"]),
    }


def _nobody(owner: str) -> Json:
    """Print who asks for nothing and has blocks."""
    unknown = ("requests", "errors", "prompt_tokens", "cached_tokens", "output_tokens", "hit_rate", "last_used_at")
    return {"tenant": owner, "name": owner, **dict.fromkeys(unknown), "limits": {}, "used": {}}


def _shown(blocks: _Blocks | None, owner: str) -> Json:
    return {"cache_blocks": None, "cache_share": None} if blocks is None else blocks.shown(owner)
