"""`/admin/v1/requests` and `/history`: what came, and how it went."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any

import orjson
from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import StreamingResponse

from gateway.admin_wire import Body, Moment, Name, NumberedPageQuery, iso_time, page_body, read_query
from gateway.errors import InvalidRequestError
from gateway.storage.history import HistorySpan, history
from gateway.storage.request_queries import (
    RequestFilter,
    RequestRow,
    export_requests,
    find_request,
    list_requests,
)
from gateway.storage.store import Store

Json = dict[str, Any]

_DAY_SECONDS = 86400.0
_MAX_HISTORY_SECONDS = 400 * _DAY_SECONDS
_MAX_COUNT = 2**31 - 1

Count = Annotated[int, Field(ge=0, le=_MAX_COUNT)] | None


class FilterQuery(Body):
    """Which requests are wanted."""

    tenant: Name | None = None
    key: Name | None = None
    model: Name | None = None
    endpoint: Name | None = None
    status: Annotated[int, Field(ge=100, le=599)] | None = None
    error: Name | None = None
    since: Moment | None = None
    until: Moment | None = None
    min_prompt_tokens: Count = None
    min_cached_tokens: Count = None
    min_output_tokens: Count = None
    min_total_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class RequestsQuery(NumberedPageQuery, FilterQuery):
    """`GET /requests`."""


class HistoryQuery(Body):
    """`GET /history`; by default the last day."""

    tenant: Name | None = None
    since: Moment | None = None
    until: Moment | None = None


def add_request_routes(router: APIRouter, store: Store) -> None:
    """Add the routes. What this gateway still holds in memory is written before anything is read."""

    async def filter_of(query: FilterQuery) -> RequestFilter:
        values = query.model_dump(exclude={"tenant", "key", "since", "until", "limit", "cursor"})
        tenant = query.tenant
        return RequestFilter(
            tenant_id=None if tenant is None else (await store.tenants.find(tenant)).id,
            key_id=query.key,
            since=_seconds(query.since),
            until=_seconds(query.until),
            **values,
        )

    @router.get("/requests")
    async def requests(request: Request) -> Json:
        query = read_query(request, RequestsQuery)
        wanted = await filter_of(query)
        await store.log.flush()
        page = await list_requests(store.database, wanted, query.span)
        return page_body([_request(row) for row in page.entries], page.next_cursor)

    @router.get("/requests/export")
    async def export(request: Request) -> StreamingResponse:
        wanted = await filter_of(read_query(request, FilterQuery))
        await store.log.flush()
        return StreamingResponse(_lines(export_requests(store.database, wanted)), media_type="application/jsonl")

    @router.get("/requests/{request_id}")
    async def show_request(request_id: str) -> Json:
        await store.log.flush()
        return _request(await find_request(store.database, request_id))

    @router.get("/history")
    async def hours(request: Request) -> Json:
        query = read_query(request, HistoryQuery)
        until = query.until.timestamp() if query.until else time.time()
        since = query.since.timestamp() if query.since else until - _DAY_SECONDS
        if not until - _MAX_HISTORY_SECONDS <= since < until:
            wanted = f"before until ({iso_time(until)}) and at most 400 days of it"
            raise InvalidRequestError(f"since: got {iso_time(since)}, wanted a time {wanted}", param="since")
        tenant_id = None if query.tenant is None else (await store.tenants.find(query.tenant)).id
        await store.log.flush()
        rows = await history(store.database, HistorySpan(since, until, tenant_id))
        return page_body([row | {"hour": iso_time(row["hour"])} for row in rows], None)


def _request(row: RequestRow) -> Json:
    """Print a row; what was not stored is left out rather than shown as nothing."""
    shown = {name: value for name, value in row.items() if name not in ("seq", "tenant_id", "key_id", "prompt_id")}
    for name in ("blocks", "request_body", "answer_text"):
        if shown.get(name) is None:
            shown.pop(name, None)
    names = {"tenant": row["tenant_id"], "key": row["key_id"], "prompt": row["prompt_id"]}
    completion_id = row["completion_id"] or None
    return shown | names | {"created_at": iso_time(row["created_at"]), "completion_id": completion_id}


async def _lines(rows: AsyncIterator[RequestRow]) -> AsyncIterator[bytes]:
    async for row in rows:
        yield orjson.dumps(_request(row), option=orjson.OPT_APPEND_NEWLINE)


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
