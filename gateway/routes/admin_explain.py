"""`/admin/v1/requests/{id}/explain`: why a request took no more from the cache."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from gateway.errors import NotFoundError, shown
from gateway.explain.report import MissReports
from gateway.recent import RecentRequests


def add_explain_route(router: APIRouter, reports: MissReports, recent: RecentRequests) -> None:
    """Add the route."""

    @router.get("/requests/{request_id}/explain")
    async def explain(request_id: str) -> dict[str, Any]:
        """Explain a request by what was cached when it was admitted, while it runs and afterwards."""
        report = await reports.report(recent.completion_id(request_id))
        if report is None:
            raise NotFoundError(
                f"id: got {shown(request_id)}, wanted the id of a request that was admitted lately", param="id"
            )
        return report
