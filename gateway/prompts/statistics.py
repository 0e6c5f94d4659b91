"""Who uses registered prompts, from the rows of the request log."""

from __future__ import annotations

from typing import Any

from sqlalchemy import and_, case, func, select

from gateway.storage.database import Database
from gateway.storage.tables import PROMPT_VERSIONS, PROMPTS, REQUESTS


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


async def usage_by_prompt(database: Database, *, since: float, until: float) -> dict[str, dict[str, Any]]:
    """Sum the requests of every prompt that was used, in one query.

    Args:
        database: with our tables.
        since: seconds since 1970.
        until: the same; not included.

    Returns: by prompt num_requests, num_hits, num_cached_tokens, last_used_at as above, and num_saved_tokens: of the cached
    ones those that can be the prompt's own, by the size of its active version; what is cached behind it is not its merit.

    Raises: StorageUnavailableError: the database does not answer.
    """
    cached, size = REQUESTS.c.num_cached_tokens, PROMPT_VERSIONS.c.num_tokens
    own = case((cached > size, size), else_=cached)
    active = and_(PROMPT_VERSIONS.c.prompt_id == PROMPTS.c.id, PROMPT_VERSIONS.c.version == PROMPTS.c.active_version)
    query = (
        select(
            REQUESTS.c.prompt_id,
            func.count().label("num_requests"),
            func.count(case((cached > 0, 1))).label("num_hits"),
            func.coalesce(func.sum(cached), 0).label("num_cached_tokens"),
            func.coalesce(func.sum(own), 0).label("num_saved_tokens"),
            func.max(REQUESTS.c.created_at).label("last_used_at"),
        )
        .select_from(REQUESTS)
        .outerjoin(PROMPTS, PROMPTS.c.id == REQUESTS.c.prompt_id)
        .outerjoin(PROMPT_VERSIONS, active)
        .where(REQUESTS.c.prompt_id.is_not(None), REQUESTS.c.created_at >= since, REQUESTS.c.created_at < until)
        .group_by(REQUESTS.c.prompt_id)
    )
    async with database.read() as connection:
        rows = [dict(row._mapping) for row in await connection.execute(query)]
    sums = ("num_cached_tokens", "num_saved_tokens")  # PostgreSQL gives them as decimals
    return {row.pop("prompt_id"): row | {name: int(row[name]) for name in sums} for row in rows}
