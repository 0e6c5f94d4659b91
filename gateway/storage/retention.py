"""How long the request log remembers: rows by age and by number, sums by age."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.storage.database import Database
from gateway.storage.tables import METRIC_MINUTES, REQUEST_HOURS, REQUESTS

HISTORY_DAYS = 400
"""So that a year can be laid beside the year before."""
MINUTES_DAYS = 8
"""So that a day can be laid beside the same one of the week before."""
_DAY_SECONDS = 86400.0
_SLICE_SECONDS = 3600
_MAX_DELETED_ROWS = 5000


@dataclass(frozen=True, slots=True)
class Retention:
    """What the request log keeps."""

    max_rows: int
    max_days: float


DEFAULT_RETENTION = Retention(max_rows=1_000_000, max_days=30.0)


async def prune(database: Database, retention: Retention, now: float) -> bool:
    """Delete what is beyond the bounds, at most a few thousand rows at a time, for it holds up other writers.

    Rows are counted by their numbers, which costs nothing; gaps in them only make it delete a little early.

    Args:
        database: with our tables.
        retention: the bounds.
        now: seconds since 1970.

    Returns: whether there may be more to delete.

    Raises: StorageUnavailableError: nothing was deleted.
    """
    async with database.write() as connection:
        newest = (await connection.execute(select(func.max(REQUESTS.c.seq)))).scalar() or 0
        num_deleted = 0
        for column, bound in (
            (REQUESTS.c.seq, newest - retention.max_rows + 1),
            (REQUESTS.c.created_at, now - retention.max_days * _DAY_SECONDS),
        ):
            oldest = select(REQUESTS.c.seq).where(column < bound).order_by(column).limit(_MAX_DELETED_ROWS)
            num_deleted += (await connection.execute(delete(REQUESTS).where(REQUESTS.c.seq.in_(oldest)))).rowcount
        is_ancient = REQUEST_HOURS.c.hour < now - HISTORY_DAYS * _DAY_SECONDS
        await connection.execute(delete(REQUEST_HOURS).where(is_ancient))
        has_more_minutes = await _prune_minutes(connection, now - MINUTES_DAYS * _DAY_SECONDS)
    return num_deleted >= _MAX_DELETED_ROWS or has_more_minutes


async def _prune_minutes(connection: AsyncConnection, bound: float) -> bool:
    """Delete an hour of them: a few thousand."""
    minute = METRIC_MINUTES.c.minute
    oldest = (await connection.execute(select(func.min(minute)))).scalar()
    if oldest is None or oldest >= bound:
        return False
    await connection.execute(delete(METRIC_MINUTES).where(minute < min(bound, oldest + _SLICE_SECONDS)))
    return bool(oldest + _SLICE_SECONDS < bound)
