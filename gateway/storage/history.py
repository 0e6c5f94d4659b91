"""Hourly sums of the request log: written with its rows, kept when the rows are gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add
from typing import Any, Protocol

from sqlalchemy import cast, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.storage.adding import upsert_adding
from gateway.storage.database import Database
from gateway.storage.tables import REQUEST_HOURS

HOUR_SECONDS = 3600
_KEY = ("hour", "tenant_id", "model")
_COLUMNS = tuple(column.name for column in REQUEST_HOURS.columns)
_FIRST_ERROR = 400


class Counted(Protocol):
    """What is summed of a request."""

    created_at: float
    tenant_id: str
    model: str
    status: int
    first_token_seconds: float | None
    total_seconds: float
    num_prompt_tokens: int | None
    num_cached_tokens: int | None
    num_output_tokens: int | None


@dataclass(frozen=True, slots=True)
class HistorySpan:
    """Which hours are wanted: [since, until), seconds since 1970."""

    since: float
    until: float
    tenant_id: str | None = None


async def add_to_hours(connection: AsyncConnection, entries: Sequence[Counted]) -> None:
    """Add requests to the sums of their hours, inside a transaction."""
    sums: dict[tuple[int, str, str], list[float]] = {}
    for entry in entries:
        key = (int(entry.created_at) // HOUR_SECONDS * HOUR_SECONDS, entry.tenant_id, _served(entry))
        values = _values(entry)
        sums[key] = [*map(add, sums[key], values)] if key in sums else [*values]
    rows = [dict(zip(_COLUMNS, (*key, *values), strict=True)) for key, values in sorted(sums.items())]
    if rows:
        await connection.execute(upsert_adding(connection, REQUEST_HOURS), rows)


async def history(database: Database, span: HistorySpan) -> Sequence[dict[str, Any]]:
    """Sum all tenants, or one, for each hour that had requests, the oldest first.

    Raises: StorageUnavailableError: the database does not answer.
    """
    hour = REQUEST_HOURS.c.hour
    summed = [column for column in REQUEST_HOURS.columns if column.name not in _KEY]
    query = (
        select(hour, *(cast(func.sum(column), column.type).label(column.name) for column in summed))
        .where(hour > span.since - HOUR_SECONDS, hour < span.until)
        .group_by(hour)
        .order_by(hour)
    )
    if span.tenant_id is not None:
        query = query.where(REQUEST_HOURS.c.tenant_id == span.tenant_id)
    async with database.read() as connection:
        return [dict(row._mapping) for row in (await connection.execute(query)).all()]


def _served(entry: Counted) -> str:
    """Clients can name any number of models that do not exist; those share one row."""
    return entry.model if entry.num_prompt_tokens is not None else ""


def _values(entry: Counted) -> tuple[float, ...]:
    """Give what is summed, in the order of the columns."""
    return (
        1,
        int(entry.status >= _FIRST_ERROR),
        entry.num_prompt_tokens or 0,
        entry.num_cached_tokens or 0,
        entry.num_output_tokens or 0,
        int(entry.first_token_seconds is not None),
        entry.first_token_seconds or 0.0,
        entry.total_seconds,
    )
