"""`/admin/v1/savings`: what each rule saved, or would have in audit mode."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from gateway.accounting.accounting import Accounting


def add_savings_route(router: APIRouter, accounting: Accounting) -> None:
    """Add the route."""

    @router.get("/savings")
    async def savings() -> dict[str, Any]:
        """Sums since the gateway's start, of all requests that were admitted before this one came."""
        await accounting.settle()
        return accounting.savings.report()
