"""`/admin/v1/cache`: the block pool of this moment, and the options that may change while it serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from gateway import checks
from gateway.backends.base import Backend
from gateway.chat_request import json_object
from gateway.errors import InvalidRequestError
from gateway.routes.snapshot import snapshot_in_time

_MAX_RESERVE = 2**31 - 1


def add_cache_routes(router: APIRouter, backend: Backend) -> None:
    """Add the routes."""

    @router.get("/cache")
    async def show() -> dict[str, Any]:
        """One consistent look at the block pool: total = free + cached + active."""
        snapshot = await snapshot_in_time(backend)
        return {
            **snapshot.blocks,
            "num_running": snapshot.num_running,
            "num_waiting": snapshot.num_waiting,
            "counters": dict(snapshot.counters),
            "options": asdict(await backend.set_cache_options()),
        }

    @router.patch("/cache")
    async def change(request: Request) -> dict[str, Any]:
        """Change the options that are given; return all."""
        return asdict(await backend.set_cache_options(**_options(await request.body())))


def _options(body: bytes) -> dict[str, Any]:
    """Check a body. Raises: InvalidRequestError: it names the field at fault."""
    read: dict[str, Callable[[str, object], float]] = {
        "max_shared_ratio": partial(checks.number, low=0.0, high=1.0),
        "growth_reserve": partial(checks.integer, low=0, high=_MAX_RESERVE),
    }
    fields = json_object(body)
    for name in fields:
        if name not in read:
            known = " or ".join(read)
            raise InvalidRequestError(f"{name}: does not change while serving, wanted {known}", param=name)
    return {name: read[name](name, value) for name, value in fields.items()}
