"""Reading the request log: filters, pages, one request, and all of them for an export."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, case, or_, select

from gateway.errors import NotFoundError, shown
from gateway.storage.database import Database
from gateway.storage.rows import Page, PageSpan, page_by
from gateway.storage.tables import REQUESTS

RequestRow = dict[str, Any]

_EXPORT_ROWS = 500
_CONTENT = ("request_body", "answer_text")
_PLAIN = {name: str(name) for name in REQUESTS.columns.keys()}  # noqa: SIM118 -- iterating gives the columns


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Which requests are wanted; None: all."""

    tenant_id: str | None = None
    key_id: str | None = None
    model: str | None = None
    endpoint: str | None = None
    status: int | None = None
    error: str | None = None
    since: float | None = None
    until: float | None = None
    """Before it; seconds since 1970."""
    min_prompt_tokens: int | None = None
    min_cached_tokens: int | None = None
    min_output_tokens: int | None = None
    min_total_seconds: float | None = None


_CONDITIONS: dict[str, Callable[[Any], ColumnElement[bool]]] = {
    **{name: REQUESTS.c[name].__eq__ for name in ("tenant_id", "key_id", "model", "endpoint", "status", "error")},
    "since": REQUESTS.c.created_at.__ge__,
    "until": REQUESTS.c.created_at.__lt__,
    "min_prompt_tokens": REQUESTS.c.num_prompt_tokens.__ge__,
    "min_cached_tokens": REQUESTS.c.num_cached_tokens.__ge__,
    "min_output_tokens": REQUESTS.c.num_output_tokens.__ge__,
    "min_total_seconds": REQUESTS.c.total_seconds.__ge__,
}


async def list_requests(database: Database, wanted: RequestFilter, span: PageSpan) -> Page[RequestRow]:
    """List requests without their content, the newest first.

    Raises: StorageUnavailableError: the database does not answer.
    """
    seq = REQUESTS.c.seq
    async with database.read() as connection:
        # Their numbers first: putting all that fits a span of time in order is quick as long as whole rows are not.
        page = await page_by(connection, _where(select(seq), wanted), span, seq, _first, is_newest_first=True)
        query = select(*_columns(with_content=False)).where(seq.in_(page.entries)).order_by(seq.desc())
        rows = (await connection.execute(query)).all()
    return Page([_as_dict(row) for row in rows], page.next_cursor)


async def find_request(database: Database, any_id: str) -> RequestRow:
    """Look one up by the id of the completion, or of the request; of several with a client's own id, the newest.

    Raises: NotFoundError: no such request; StorageUnavailableError: the database does not answer.
    """
    is_own = case(
        (REQUESTS.c.completion_id == any_id, 1), else_=0
    )  # a client may have chosen another one's for its own
    is_meant = or_(REQUESTS.c.request_id == any_id, REQUESTS.c.completion_id == any_id)
    async with database.read() as connection:
        query = select(REQUESTS).where(is_meant).order_by(is_own.desc(), REQUESTS.c.seq.desc()).limit(1)
        row = (await connection.execute(query)).one_or_none()
    if row is None:
        raise NotFoundError(f"request: got {shown(any_id)}, wanted the id of a request in the log", param="request")
    return _as_dict(row)


async def export_requests(database: Database, wanted: RequestFilter) -> AsyncIterator[RequestRow]:
    """Yield requests with what is stored of their content, the oldest first. No transaction is held meanwhile.

    Raises: StorageUnavailableError: the database does not answer.
    """
    cursor: str | None = None
    while True:
        async with database.read() as connection:
            query = _where(select(*_columns(with_content=True)), wanted)
            page = await page_by(connection, query, PageSpan(_EXPORT_ROWS, cursor), REQUESTS.c.seq, _as_dict)
        for row in page.entries:
            yield row
        cursor = page.next_cursor
        if cursor is None:
            return


def _columns(*, with_content: bool) -> list[ColumnElement[Any]]:
    return [column for column in REQUESTS.columns if with_content or column.name not in _CONTENT]


def _where(query: Select[Any], wanted: RequestFilter) -> Select[Any]:
    for name, condition in _CONDITIONS.items():
        if (value := getattr(wanted, name)) is not None:
            query = query.where(condition(value))
    return query


def _first(row: Row[Any]) -> int:
    return int(row[0])


def _as_dict(row: Row[Any]) -> RequestRow:
    # Names of columns are a kind of string of their own, which takes ten times as long to print.
    return {_PLAIN[name]: value for name, value in row._mapping.items()}
