"""How long the request log remembers: rows by age and by number, hourly sums by age."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, func, select

from gateway.storage.database import Database
from gateway.storage.tables import REQUEST_HOURS, REQUESTS

HISTORY_DAYS = 400
"""So that a year can be laid beside the year before."""
_DAY_SECONDS = 86400.0
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
    return num_deleted >= _MAX_DELETED_ROWS
