"""`/admin/v1/requests/{id}/blocks`: what single requests hold of the cache."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from gateway.backends.base import Backend
from gateway.errors import NotFoundError, shown
from gateway.explain.places import owners_of_blocks
from gateway.explain.records import PromptRecords
from gateway.recent import RecentRequests


def add_block_routes(router: APIRouter, backend: Backend, recent: RecentRequests, records: PromptRecords) -> None:
    """Add the routes."""

    @router.get("/requests/{request_id}/blocks")
    async def blocks(request_id: str) -> dict[str, Any]:
        """The block table of a request: live while it runs, as it was at its end afterwards."""
        completion_id = recent.completion_id(request_id)
        view = await backend.blocks_of(completion_id)
        if view is None:
            raise NotFoundError(
                f"id: got {shown(request_id)}, wanted the id of a request that waits, runs or ended lately", param="id"
            )
        record = records.find(completion_id)
        if record is not None:
            await record.locate()
        size = backend.model_info().block_size
        owners = owners_of_blocks(record.regions if record else (), num_blocks=len(view.blocks), block_size=size)
        blocks = [asdict(block) | {"owners": of} for block, of in zip(view.blocks, owners, strict=True)]
        return {"id": completion_id, **asdict(view), "blocks": blocks}
