"""What the stores share: ids that sort by age, and pages of rows."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Row, Select
from sqlalchemy.ext.asyncio import AsyncConnection

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some of many entries."""

    entries: Sequence[T]
    next_cursor: str | None
    """Where to go on; None: that was all."""


@dataclass(frozen=True, slots=True)
class PageSpan:
    """Which page is wanted."""

    limit: int
    cursor: str | None = None
    """`next_cursor` of the page before."""


def new_id(prefix: str, now: float) -> str:
    """Make an id: `key_` and 24 hexadecimal digits, the first half of which is the time."""
    return f"{prefix}_{int(now * 1000):012x}{secrets.token_hex(6)}"


async def page_by(
    connection: AsyncConnection,
    query: Select[Any],
    span: PageSpan,
    key: ColumnElement[Any],
    build: Callable[[Row[Any]], T],
    *,
    is_newest_first: bool = False,
) -> Page[T]:
    """Read one page, in the order of a unique column.

    Args:
        connection: an open transaction.
        query: all entries.
        span: which of them; a cursor must have the column's type.
        key: the unique column.
        build: makes an entry of a row.
        is_newest_first: descending.
    """
    if span.cursor is not None:
        cursor = int(span.cursor) if key.type.python_type is int else span.cursor
        query = query.where(key < cursor if is_newest_first else key > cursor)
    query = query.order_by(key.desc() if is_newest_first else key).limit(span.limit + 1)
    rows = (await connection.execute(query)).all()
    page = rows[: span.limit]
    next_cursor = str(getattr(page[-1], key.key or "")) if len(rows) > span.limit else None
    return Page([build(row) for row in page], next_cursor)
