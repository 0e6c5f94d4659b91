"""`/admin/v1/upstreams`: who answers, who works on how much, and how well their caches are foreseen."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from gateway.upstream.foresight import BLOCK_SIZE, NUM_BLOCKS, Foresight
from gateway.upstream.pool import UpstreamPool

Json = dict[str, Any]


def add_upstream_route(router: APIRouter, pool: UpstreamPool, foresight: Foresight | None) -> None:
    """Add the route; without foresight there is no estimate to show."""

    @router.get("/upstreams")
    async def upstreams() -> Json:
        entries = [
            {
                "url": upstream.name,
                "is_up": upstream.is_up,
                "in_flight": upstream.num_in_flight,
                "estimate": None if foresight is None else _estimate(foresight, upstream.name),
            }
            for upstream in pool.upstreams
        ]
        return {"object": "list", "data": entries}


def _estimate(foresight: Foresight, name: str) -> Json:
    cache = foresight.caches[name]
    size = {"block_size": BLOCK_SIZE, "blocks": cache.num_blocks, "most_blocks": NUM_BLOCKS}
    return size | asdict(cache.sums)
