"""Sums by the hour: those of all writers, by tenant, and over HTTP."""

from __future__ import annotations

import asyncio

from gateway.storage.database import Database
from gateway.storage.history import HOUR_SECONDS, HistorySpan, history
from gateway.storage.request_log import RequestLog
from gateway.storage.retention import DEFAULT_RETENTION
from tests.gateway.storage.test_request_log import entry
from tests.gateway.support.stored_gateway import Gateway


async def test_history_sums_by_hour_and_tenant_from_two_writers(database: Database, url: str) -> None:
    start = 500 * HOUR_SECONDS
    other = Database(url)
    logs = [RequestLog(each, DEFAULT_RETENTION) for each in (database, other)]
    for number in range(60):
        hour, log = start + number % 2 * HOUR_SECONDS, logs[number % 3 % 2]
        failed = number % 10 == 9
        log.record(
            entry(
                number,
                created_at=hour + 3599.9 * (number % 4 > 1),
                tenant_id=f"t{number % 3}",
                status=503 if failed else 200,
                num_prompt_tokens=None if failed else 100,
                num_cached_tokens=None if failed else 40,
                num_output_tokens=7,
                first_token_seconds=None if failed else 0.5,
                total_seconds=2.0,
            )
        )
        if number % 7 == 0:
            await asyncio.gather(*(each.flush() for each in logs))
    await asyncio.gather(*(each.flush() for each in logs))
    first, second = await history(database, HistorySpan(start, start + 2 * HOUR_SECONDS))
    assert first == {
        "hour": start,
        "num_requests": 30,
        "num_errors": 0,
        "num_prompt_tokens": 3000,
        "num_cached_tokens": 1200,
        "num_output_tokens": 210,
        "num_first_tokens": 30,
        "first_token_seconds": 15.0,
        "total_seconds": 60.0,
    }
    assert (second["num_requests"], second["num_errors"], second["num_prompt_tokens"]) == (30, 6, 2400)
    (mine,) = await history(database, HistorySpan(start + 1800, start + HOUR_SECONDS, "t0"))
    assert mine["num_requests"] == 10
    assert await history(database, HistorySpan(start + 2 * HOUR_SECONDS, start + 9 * HOUR_SECONDS)) == []
    await other.close()


async def test_history_over_http(gateway: Gateway) -> None:
    await gateway.chat(await gateway.make_key("acme"))
    (hour,) = (await gateway.admin.get("/history?tenant=acme")).json()["data"]
    assert hour["num_requests"] == 1
    assert hour["hour"].endswith(":00:00.000Z")
    assert (await gateway.admin.get("/history?tenant=default")).json()["data"] == []
    for query in ("since=2020-01-01T00:00:00Z", "since=2999-01-01T00:00:00Z", "until=x", "hours=3"):
        assert (await gateway.admin.get(f"/history?{query}")).status_code == 400, query
