"""`/admin/v1/losses`: the sums of a time, which close, and the requests that lost most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.settings import Settings
from gateway.storage.database import Database
from gateway.storage.store import Store
from gateway.upstream.app import create_upstream_app, pool_of
from tests.gateway.support.fake_backend import BLOCK_SIZE
from tests.gateway.support.stored_gateway import ADMIN, PEPPER, Gateway, OpenGateway
from tests.gateway.test_metrics import scrape

SUMS = ("prompt_tokens", "possible_tokens", "cached_tokens", "unseen_tokens")
WORDS = "word " * 60


@pytest.fixture
def url(tmp_path: Path) -> str:
    """One kind of database is enough: the sums themselves are read on both elsewhere."""
    (tmp_path / "test.db").touch()
    return f"sqlite+aiosqlite:///{tmp_path}/test.db"


async def losses(gateway: Gateway, **query: Any) -> dict[str, Any]:
    answer = await gateway.admin.get("/losses", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def lose(gateway: Gateway) -> None:
    """Chats of which the second is reused, and the third is not, for the engine has nothing any more."""
    for content in ("hi " + WORDS, "hi " + WORDS):
        await gateway.chat(content=content)
    gateway.backend.forget()
    await gateway.chat(content="hi " + WORDS)


async def test_sums_close_and_are_those_of_the_overview_and_the_metrics(open_gateway: OpenGateway) -> None:
    async with open_gateway(accounting_sampling=1.0) as gateway:
        await lose(gateway)
        seen, maximum = await losses(gateway), (await gateway.admin.get("/overview")).json()["maximum"]
        gateway.admin.base_url = httpx.URL("http://gateway")
        series = await scrape(gateway.admin)
    (row,) = seen["lost"]
    assert (row["reason"], row["region"]) == ("never_cached", "unknown")
    assert seen["possible_tokens"] - row["tokens"] == seen["cached_tokens"] > 100
    assert seen["prompt_tokens"] - seen["possible_tokens"] == seen["unseen_tokens"] > 100
    assert seen["sampling"] == maximum["sampling"] == 1.0
    for name, metric in (
        ("prompt_tokens", "sampled_prompt_tokens"),
        ("possible_tokens", "possible_tokens"),
        ("cached_tokens", "sampled_cached_tokens"),
    ):
        assert seen[name] == maximum[name] == series[f"prefixgate_{metric}_total"]
    assert row["tokens"] == series["prefixgate_lost_tokens_total[never_cached][unknown]"]
    assert maximum["hit_rate"] == seen["cached_tokens"] / seen["prompt_tokens"] < maximum["max_hit_rate"]


async def test_worst_requests_are_named_as_the_explanation_wants_them(open_gateway: OpenGateway) -> None:
    async with open_gateway(accounting_sampling=1.0) as gateway:
        await lose(gateway)
        (worst,) = (await losses(gateway))["top"]
        explained = await gateway.admin.get(f"/requests/{worst['completion_id']}/explain")
    assert explained.json()["request_id"] == worst["request_id"]
    assert worst["tenant"] == explained.json()["tenant"]
    assert worst["prompt_tokens"] - BLOCK_SIZE <= worst["lost_tokens"] < worst["prompt_tokens"]


async def test_sums_survive_a_restart_and_are_of_their_time(open_gateway: OpenGateway) -> None:
    async with open_gateway(accounting_sampling=1.0) as gateway:
        await lose(gateway)
        before = await losses(gateway)
    async with open_gateway(accounting_sampling=1.0) as gateway:
        after = await losses(gateway)
        earlier = await losses(gateway, since="2020-01-01T00:00:00Z", until="2020-01-02T00:00:00Z")
    assert {name: after[name] for name in (*SUMS, "lost")} == {name: before[name] for name in (*SUMS, "lost")}
    assert after["top"] == []
    assert [earlier[name] for name in SUMS] == [None] * 4
    assert earlier["lost"] == []


async def test_where_nothing_is_sampled_there_is_no_data(open_gateway: OpenGateway) -> None:
    async with open_gateway(accounting_sampling=0.0) as gateway:
        await lose(gateway)
        seen, maximum = await losses(gateway), (await gateway.admin.get("/overview")).json()["maximum"]
    assert [seen[name] for name in SUMS] == [None] * 4
    assert (seen["sampling"], seen["lost"], seen["top"]) == (0.0, [], [])
    assert maximum["possible_tokens"] is maximum["max_hit_rate"] is maximum["evicted_blocks"] is None


async def test_in_front_of_upstreams_nobody_knows(database: Database) -> None:
    settings = Settings(admin_key="open-sesame", upstream=["http://127.0.0.1:1"])  # type: ignore[arg-type]
    store = Store(Database(database.url.render_as_string(hide_password=False)), PEPPER)
    app = create_upstream_app(settings, pool_of(settings), store=store)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://gateway/admin/v1", headers=ADMIN
        ) as admin,
    ):
        seen = (await admin.get("/losses")).json()
    assert [seen[name] for name in (*SUMS, "sampling")] == [None] * 5


async def test_time_that_ends_before_it_begins_is_refused(gateway: Gateway) -> None:
    answer = await gateway.admin.get(
        "/losses", params={"since": "2031-01-01T00:00:00Z", "until": "2030-01-01T00:00:00Z"}
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "since")


@pytest.mark.parametrize("path", ["/losses", "/series", "/history", "/usage/tenants"])
async def test_time_that_no_zone_can_write_is_refused(gateway: Gateway, path: str) -> None:
    for name, value in (
        ("since", "0001-01-01T00:00:00+14:00"),
        ("until", "0001-01-01T00:00:00Z"),
        ("until", "9999-12-31T23:59:59-14:00"),
        ("since", "9999-12-31T23:59:59-14:00"),
    ):
        answer = await gateway.admin.get(path, params={name: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


async def test_request_is_found_by_the_answers_own_id_before_a_name_that_a_client_gave_another(
    gateway: Gateway,
) -> None:
    meant = (await gateway.chat()).json()["id"]
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    headers = {"x-request-id": meant, "authorization": ""}
    answer = await gateway.admin.post("http://gateway/v1/chat/completions", json=body, headers=headers)
    assert answer.headers["x-request-id"] == meant
    assert (await gateway.admin.get(f"/requests/{meant}")).json()["completion_id"] == meant
