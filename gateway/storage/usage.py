"""Who used how much: the hourly sums by tenant, and when each was last heard of."""

from __future__ import annotations

from typing import Any

from sqlalchemy import cast, func, select

from gateway.storage.database import Database
from gateway.storage.history import HOUR_SECONDS, HistorySpan
from gateway.storage.tables import REQUEST_HOURS, REQUESTS, TENANTS

_SUMS = ("num_requests", "num_errors", "num_prompt_tokens", "num_cached_tokens", "num_output_tokens")


async def usage_by_tenant(database: Database, span: HistorySpan) -> list[dict[str, Any]]:
    """Sum the hours of a span for every tenant, the oldest first; 0 where one asked for nothing.

    Returns: `id`, `name`, the sums, and `last_used_at` in seconds since 1970: its newest request in the log; None: none.

    Raises: StorageUnavailableError: the database does not answer.
    """
    hours = REQUEST_HOURS.c
    sums = (
        select(hours.tenant_id, *(cast(func.sum(hours[name]), hours[name].type).label(name) for name in _SUMS))
        .where(hours.hour > span.since - HOUR_SECONDS, hours.hour < span.until)
        .group_by(hours.tenant_id)
        .subquery()
    )
    newest = (
        select(REQUESTS.c.created_at)
        .where(REQUESTS.c.tenant_id == TENANTS.c.id)
        .order_by(REQUESTS.c.seq.desc())
        .limit(1)
        .scalar_subquery()
    )
    query = (
        select(
            TENANTS.c.id,
            TENANTS.c.name,
            *(func.coalesce(sums.c[name], 0).label(name) for name in _SUMS),
            newest.label("last_used_at"),
        )
        .outerjoin(sums, sums.c.tenant_id == TENANTS.c.id)
        .order_by(TENANTS.c.id)
    )
    async with database.read() as connection:
        return [dict(row._mapping) for row in (await connection.execute(query)).all()]
