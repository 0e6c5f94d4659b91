from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import func, select

from gateway.backends.base import RequestRejectedError
from gateway.request_entry import RequestEntry
from gateway.storage.database import Database
from gateway.storage.history import HistorySpan, history
from gateway.storage.request_log import RequestLog
from gateway.storage.retention import DEFAULT_RETENTION, HISTORY_DAYS, Retention, prune
from gateway.storage.tables import REQUESTS
from tests.gateway.support.fake_backend import TOKENS_PER_SECOND
from tests.gateway.support.server import until
from tests.gateway.support.stored_gateway import Gateway, OpenGateway
from tests.support.postgres import Cluster

DAY = 86400.0


def entry(number: int = 0, **fields: Any) -> RequestEntry:
    made = RequestEntry(f"req-{number}", "/v1/chat/completions", "default", None, created_at=1_000_000.0 + number)
    for name, value in {"model": "tiny", "status": 200, "num_prompt_tokens": 10, **fields}.items():
        setattr(made, name, value)
    return made


async def rows(gateway: Gateway, **query: object) -> list[dict[str, Any]]:
    answer = await gateway.admin.get("/requests", params=query)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    return list(answer.json()["data"])


async def num_rows(database: Database) -> int:
    async with database.read() as connection:
        return int((await connection.execute(select(func.count()).select_from(REQUESTS))).scalar_one())


async def metric(gateway: Gateway, name: str) -> float:
    text = (await gateway.admin.get("http://gateway/metrics")).text
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return next(sample.value for sample in samples if sample.name == f"prefixgate_{name}")


@pytest.mark.parametrize("stream", [False, True])
async def test_request_is_remembered_with_all_that_became_of_it(gateway: Gateway, stream: bool) -> None:
    key = await gateway.make_key("acme")
    await gateway.chat(key, "one " * 20)
    answer = await gateway.chat(key, "one " * 19 + "two", stream=stream)
    newest, first = await rows(gateway)
    report = dict(part.split("=") for part in answer.headers["x-prefixgate-cache"].split("; "))
    times = [newest.pop(f"{name}_seconds") for name in ("prepare", "queue", "first_token", "total")]
    assert 0 < times[0] <= times[0] + times[1] <= times[2] <= times[3] < 30
    assert datetime.fromisoformat(newest.pop("created_at")) > datetime.now(UTC) - timedelta(minutes=1)
    tenant = (await gateway.admin.get("/tenants/acme")).json()["id"]
    key_id = (await gateway.admin.get("/keys")).json()["data"][0]["id"]
    hits = int(report["cached"]) // 8
    assert hits > 0
    assert newest == {
        "request_id": answer.headers["x-request-id"],
        "completion_id": gateway.backend.requests[-1].request_id,
        "tenant": tenant,
        "key": key_id,
        "prompt": None,
        "model": "tiny",
        "endpoint": "/v1/chat/completions",
        "status": 200,
        "error": None,
        "finish_reason": "stop",
        "is_stream": stream,
        "num_prompt_tokens": int(report["prompt"]),
        "num_cached_tokens": int(report["cached"]),
        "num_output_tokens": len(gateway.backend.reply),
        "saved_seconds": int(report["cached"]) / TOKENS_PER_SECOND,
        "reasons": {"hit": hits, "diverged": int(report["prompt"]) // 8 - hits},
        "rules": [],
        "context_management": None,
    }
    for any_id in (first["request_id"], first["completion_id"]):
        assert (await gateway.admin.get(f"/requests/{any_id}")).json() == first
    assert (await gateway.admin.get("/requests/req-none")).status_code == 404


async def test_admin_paths_have_labels_of_their_own(gateway: Gateway) -> None:
    await gateway.admin.get("/keys")
    await gateway.admin.get("/keys/key_1")
    text = (await gateway.admin.get("http://gateway/metrics")).text
    assert 'prefixgate_requests_total{endpoint="/admin/v1/keys",status="200"} 1.0' in text
    assert 'prefixgate_requests_total{endpoint="other",status="404"} 1.0' in text


async def test_failures_are_remembered_by_their_codes_and_strangers_not_at_all(gateway: Gateway) -> None:
    key = await gateway.make_key("acme")
    backend = gateway.backend
    await gateway.chat("wrong")
    await gateway.chat(key, temperature=9)
    await gateway.chat(key, model="x" * 500 + "\0")
    await gateway.chat(key, max_tokens=100_000)
    backend.is_up = False
    await gateway.chat(key)
    backend.is_up, backend.fail_after = True, 1
    await gateway.chat(key)
    await gateway.chat(key, stream=True)
    backend.fail_after, backend.reject = None, RequestRejectedError("no")
    await gateway.chat(key)
    seen = [(row["status"], row["error"], row["num_prompt_tokens"] is not None) for row in await rows(gateway)]
    assert seen[::-1] == [
        (400, None, False),
        (404, "model_not_found", False),
        (400, "context_length_exceeded", False),
        (503, "engine_unavailable", False),
        (503, "engine_failed", True),
        (503, "engine_failed", True),
        (500, "engine_error", False),
    ]
    (broken,) = await rows(gateway, status=404)
    assert broken["model"] == "x" * 200
    assert [row["num_output_tokens"] for row in await rows(gateway, error="engine_failed")] == [1, 1]


async def test_client_that_leaves_is_remembered_as_499(gateway: Gateway) -> None:
    gateway.backend.delay_seconds = 600
    asked = asyncio.ensure_future(gateway.chat(content="hi", stream=True))
    await until(lambda: gateway.backend.live)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    (row,) = await rows(gateway)
    assert (row["status"], row["finish_reason"], row["num_output_tokens"]) == (499, None, 0)
    assert row["first_token_seconds"] is None


async def test_filters_choose(gateway: Gateway) -> None:
    acme, other = await gateway.make_key("acme"), await gateway.make_key("other")
    await gateway.chat(acme, "hi")
    middle = datetime.now(UTC)
    await gateway.chat(other, "hello " * 30)
    await gateway.chat(other, temperature=9)
    key_id = (await gateway.admin.get("/keys?tenant=acme")).json()["data"][0]["id"]
    small = (await rows(gateway, tenant="acme"))[0]["num_prompt_tokens"]
    for query, wanted in [
        ({}, 3),
        ({"tenant": "acme"}, 1),
        ({"tenant": "other", "status": 200}, 1),
        ({"key": key_id}, 1),
        ({"status": 400}, 1),
        ({"model": "tiny"}, 2),
        ({"model": "' OR 1=1 --"}, 0),
        ({"endpoint": "/v1/chat/completions"}, 3),
        ({"since": middle.isoformat()}, 2),
        ({"until": middle.isoformat()}, 1),
        ({"since": middle.timestamp() + 1000}, 0),
        ({"min_prompt_tokens": small}, 2),
        ({"min_prompt_tokens": small + 1}, 1),
        ({"min_cached_tokens": 1}, 0),
        ({"min_output_tokens": 1}, 2),
        ({"min_total_seconds": 1000}, 0),
    ]:
        assert len(await rows(gateway, **query)) == wanted, query


@pytest.mark.parametrize(
    ("query", "param", "status"),
    [
        ("status=abc", "status", 400),
        ("status=99", "status", 400),
        ("since=yesterday", "since", 400),
        ("since=2026-01-01T00:00:00", "since", 400),
        ("min_prompt_tokens=-1", "min_prompt_tokens", 400),
        ("min_prompt_tokens=99999999999", "min_prompt_tokens", 400),
        ("min_total_seconds=nan", "min_total_seconds", 400),
        ("tenant=nobody", "tenant", 404),
        ("order=asc", "order", 400),
        ("cursor=-1", "cursor", 400),
    ],
)
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_bad_filter_is_refused(gateway: Gateway, query: str, param: str, status: int) -> None:
    answer = await gateway.admin.get(f"/requests?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


async def test_pages_and_export_give_every_row_once(gateway: Gateway) -> None:
    for number in range(1203):
        gateway.store.log.record(entry(number, created_at=time.time()))
    seen, cursor = [], None
    while True:
        page = (await gateway.admin.get(f"/requests?limit=500{f'&cursor={cursor}' if cursor else ''}")).json()
        seen += [row["request_id"] for row in page["data"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert seen == [f"req-{number}" for number in reversed(range(1203))]
    answer = await gateway.admin.get("/requests/export")
    assert answer.headers["content-type"] == "application/jsonl"
    exported = [json.loads(line) for line in answer.text.splitlines()]
    assert [row["request_id"] for row in exported] == seen[::-1]
    assert (await gateway.admin.get("/requests/export?status=404")).text == ""


async def test_several_answers_are_one_row(open_gateway: OpenGateway) -> None:
    async with open_gateway(store_content=True) as gateway:
        await gateway.chat(n=2)
        kept = (await gateway.admin.get(f"/requests/{(await rows(gateway))[0]['request_id']}")).json()
    assert kept["answer_text"].split("\n\n") == ["hello world, over the lazy dog"] * 2
    assert kept["num_output_tokens"] == 2 * len(gateway.backend.reply)


async def test_content_is_kept_only_where_it_was_asked_for(open_gateway: OpenGateway) -> None:
    async with open_gateway() as gateway:
        await gateway.chat(content="a secret")
        (row,) = await rows(gateway)
        assert "secret" not in (await gateway.admin.get("/requests/export")).text
        assert not {"request_body", "answer_text"} & row.keys()
    async with open_gateway(store_content=True) as gateway:
        await gateway.chat(content="keep\0 me")
        await gateway.chat(content="me too", stream=True)
        lines = (await gateway.admin.get("/requests/export")).text.splitlines()[1:]
        for line, words in zip(lines, ("keep\0 me", "me too"), strict=True):
            kept = json.loads(line)
            assert json.loads(kept["request_body"])["messages"][0]["content"] == words
            assert kept["answer_text"] == "hello world, over the lazy dog"
        assert "keep" not in (await gateway.admin.get("/requests")).text
        newest = (await rows(gateway))[0]["request_id"]
        assert "me too" in (await gateway.admin.get(f"/requests/{newest}")).json()["request_body"]


async def test_answer_with_a_nul_is_stored(database: Database) -> None:
    (log := RequestLog(database, DEFAULT_RETENTION)).record(entry(answer_text="a\0b"))
    await log.flush()
    assert log.num_written == 1


async def test_content_beyond_its_bound_is_left_out_and_the_row_kept(database: Database) -> None:
    log = RequestLog(database, DEFAULT_RETENTION, max_waiting_chars=10)
    for number in range(3):
        log.record(entry(number, answer_text="12345"))
    await log.flush()
    log.record(entry(3, answer_text="1234567890"))
    await log.flush()
    async with database.read() as connection:
        texts = (await connection.execute(select(REQUESTS.c.answer_text).order_by(REQUESTS.c.seq))).scalars().all()
    assert texts == ["12345", "12345", None, "1234567890"]


async def test_full_queue_drops_and_counts(database: Database) -> None:
    log = RequestLog(database, DEFAULT_RETENTION, max_waiting_rows=5)
    for number in range(8):
        log.record(entry(number))
    assert (log.num_waiting, log.num_dropped) == (5, 3)
    await log.flush()
    assert (log.num_waiting, log.num_written, await num_rows(database)) == (0, 5, 5)


@pytest.mark.parametrize("fault", [{"status": None}, {"status": 1 << 70}, {"reasons": {1: 1}}])
async def test_rows_that_cannot_be_written_are_in_nobodys_way(database: Database, fault: Any, caplog: Any) -> None:
    log = RequestLog(database, DEFAULT_RETENTION)
    for number in range(7):
        log.record(entry(number, **(fault if number in (2, 3) else {})))
    await log.flush()
    assert (log.num_written, log.num_dropped, log.num_waiting, await num_rows(database)) == (5, 2, 0, 5)
    ours = [record for record in caplog.records if record.name.startswith("gateway.")]  # psycopg tells of its pipelines
    assert [record.getMessage()[:6] for record in ours] == ["2 rows"]


async def test_prune_keeps_the_newest_rows_and_the_sums(database: Database) -> None:
    log = RequestLog(database, DEFAULT_RETENTION)
    for number in range(10):
        log.record(entry(number))
    await log.flush()
    now = 1_000_010.0
    await prune(database, Retention(max_rows=7, max_days=1), now)
    assert await num_rows(database) == 7
    await prune(database, Retention(max_rows=7, max_days=4 / DAY), now)
    assert await num_rows(database) == 4
    await prune(database, Retention(max_rows=0, max_days=1), now)
    assert await num_rows(database) == 0
    (hour,) = await history(database, HistorySpan(0, now))
    assert hour["num_requests"] == 10
    await prune(database, DEFAULT_RETENTION, now + (HISTORY_DAYS + 1) * DAY)
    assert await history(database, HistorySpan(0, now)) == []


async def test_prune_takes_many_rows_in_slices(database: Database) -> None:
    log = RequestLog(database, DEFAULT_RETENTION)
    for number in range(5600):
        log.record(entry(number))
    await log.flush()
    retention = Retention(max_rows=500, max_days=1)
    assert await prune(database, retention, 1_000_000.0) is True
    assert await num_rows(database) == 600
    assert await prune(database, retention, 1_000_000.0) is False
    assert await num_rows(database) == 500


async def test_log_prunes_itself(database: Database) -> None:
    log = RequestLog(database, Retention(max_rows=3, max_days=1), flush_seconds=0.01)
    for number in range(10):
        log.record(entry(number, created_at=time.time()))
    log.start()
    async with asyncio.timeout(20):
        while log.num_written < 10 or await num_rows(database) > 3:
            await asyncio.sleep(0.02)
    await log.stop()


async def lose_and_regain(gateway: Gateway, lose: Any, regain: Any) -> None:
    """Serving goes on without the database, admin requests say so, and nothing that was answered is lost."""
    key = await gateway.make_key("acme")
    lose()
    await until(lambda: not gateway.store.watcher.is_up, seconds=30)
    assert (await gateway.chat(key)).status_code == 200
    assert (await gateway.chat("wrong")).status_code == 401
    for method, path, body in [
        ("POST", "/tenants", {"name": "x"}),
        ("POST", "/keys", {"tenant": "acme"}),
        ("GET", "/keys", None),
        ("GET", "/requests", None),
        ("GET", "/requests/export", None),
        ("GET", "/audit", None),
    ]:
        answer: httpx.Response = await gateway.admin.request(method, path, json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable"), path
        assert answer.headers["retry-after"] == "5"
    assert await metric(gateway, "database_up") == 0
    assert await metric(gateway, "request_log_waiting_rows") == 1
    assert (await gateway.admin.get("/config")).status_code == 200
    regain()
    await until(lambda: gateway.store.watcher.is_up and not gateway.store.log.num_waiting, seconds=30)
    assert (await gateway.admin.post("/tenants", json={"name": "x"})).status_code == 201
    assert len(await rows(gateway)) == 1
    assert await metric(gateway, "database_up") == await metric(gateway, "request_log_written_rows_total") == 1
    assert await metric(gateway, "request_log_dropped_rows_total") == 0


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_sqlite_file_that_vanishes_stops_no_chat(gateway: Gateway) -> None:
    file = Path(gateway.store.database.place)
    away = file.with_name("away")
    await lose_and_regain(gateway, lambda: file.rename(away), lambda: away.rename(file))


@pytest.mark.parametrize("url", ["own-postgresql"], indirect=True)
async def test_postgresql_that_stops_stops_no_chat(gateway: Gateway, own_cluster: Cluster) -> None:
    await lose_and_regain(gateway, own_cluster.stop, own_cluster.start)


async def test_what_the_context_policy_did_is_remembered(gateway: Gateway) -> None:
    key = await gateway.make_key("acme")
    gateway.backend.max_model_len = 1024
    for mode in ("on", "audit"):
        await gateway.admin.put("/rules/context_policy", json={"mode": mode, "params": {"high": 0.2, "low": 0.1}})
        turns = [{"role": role, "content": f"{mode} {'the lazy dog ' * 20}"} for role in ("user", "assistant")] * 2
        answer = await gateway.chat(key, messages=[*turns, {"role": "user", "content": "hi"}], max_tokens=8)
        assert answer.status_code == 200, answer.text
        (row, *_) = await rows(gateway)
        told = row["context_management"]
        assert told["mode"] == mode
        assert told["applied_edits"]
        assert told["original_input_tokens"] > told["input_tokens"]
        if mode == "on":
            assert told == {"mode": mode, **answer.json()["context_management"]}
        assert (await gateway.admin.get(f"/requests/{row['request_id']}")).json() == row
    sums = await gateway.store.log.minutes.sums(0, time.time() + 60)
    context = {one.name: one.value for one in sums if one.name.startswith("context_")}
    assert context.pop("context_cleared_tokens") > 0
    assert context.keys() <= {"context_requests", "context_edited_requests", "context_cuts"}
    assert set(context.values()) == {1}  # of audit mode nothing is summed
