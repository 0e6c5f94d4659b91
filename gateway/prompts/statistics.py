"""Who uses a registered prompt, from the rows of the request log."""

from __future__ import annotations

from typing import Any

from sqlalchemy import case, func, select

from gateway.storage.database import Database
from gateway.storage.tables import REQUESTS


async def prompt_statistics(database: Database, prompt_id: str, *, since: float, until: float) -> dict[str, Any]:
    """Sum the requests that named a prompt or began with it.

    Args:
        database: with our tables.
        prompt_id: whose.
        since: seconds since 1970.
        until: the same; not included.

    Returns: num_requests, num_hits (of them, with cached tokens), num_cached_tokens (what was not computed for them),
    last_used_at (in seconds, or None), share_of_requests (0 to 1, of all requests; None: there were none).

    Raises: StorageUnavailableError: the database does not answer.
    """
    is_its = REQUESTS.c.prompt_id == prompt_id
    query = select(
        func.count().label("all"),
        func.count(case((is_its, 1))).label("num_requests"),
        func.count(case((is_its & (REQUESTS.c.num_cached_tokens > 0), 1))).label("num_hits"),
        func.coalesce(func.sum(case((is_its, REQUESTS.c.num_cached_tokens))), 0).label("num_cached_tokens"),
        func.max(case((is_its, REQUESTS.c.created_at))).label("last_used_at"),
    ).where(REQUESTS.c.created_at >= since, REQUESTS.c.created_at < until)
    async with database.read() as connection:
        row = dict((await connection.execute(query)).one()._mapping)
    num_all = row.pop("all")
    return row | {
        "num_cached_tokens": int(row["num_cached_tokens"]),
        "share_of_requests": row["num_requests"] / num_all if num_all else None,
    }
