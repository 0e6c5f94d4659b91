"""How long the request log remembers: rows by age and by number, hourly sums by age."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, func, select

from gateway.storage.database import Database
from gateway.storage.tables import REQUEST_HOURS, REQUESTS

HISTORY_DAYS = 400
"""So that a year can be laid beside the year before."""
_DAY_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class Retention:
    """What the request log keeps."""

    max_rows: int
    max_days: float


DEFAULT_RETENTION = Retention(max_rows=1_000_000, max_days=30.0)


async def prune(database: Database, retention: Retention, now: float) -> None:
    """Delete what is beyond the bounds.

    Rows are counted by their numbers, which costs nothing; gaps in them only make it delete a little early.

    Args:
        database: with our tables.
        retention: the bounds.
        now: seconds since 1970.

    Raises: StorageUnavailableError: nothing was deleted.
    """
    async with database.write() as connection:
        newest = (await connection.execute(select(func.max(REQUESTS.c.seq)))).scalar() or 0
        too_old = now - retention.max_days * _DAY_SECONDS
        is_beyond = (REQUESTS.c.seq <= newest - retention.max_rows) | (REQUESTS.c.created_at < too_old)
        await connection.execute(delete(REQUESTS).where(is_beyond))
        is_ancient = REQUEST_HOURS.c.hour < now - HISTORY_DAYS * _DAY_SECONDS
        await connection.execute(delete(REQUEST_HOURS).where(is_ancient))
