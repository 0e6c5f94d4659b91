"""`/admin/v1/requests/{id}/changes`: what the normalizer makes of a stored request."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter

from gateway.storage.request_queries import find_request
from gateway.storage.store import Store
from gateway.stored_changes import StoredChanges


def add_changes_route(router: APIRouter, store: Store, changes: StoredChanges) -> None:
    """Add the route."""

    @router.get("/requests/{request_id}/changes")
    async def show(request_id: str) -> dict[str, Any]:
        """Compare the stored body, as it came, with its canonical form."""
        await store.log.flush()
        return await asyncio.to_thread(changes.show, await find_request(store.database, request_id))
