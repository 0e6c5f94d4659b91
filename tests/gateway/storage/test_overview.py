"""`/admin/v1/overview`: the numbers of other places, together, and what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.lately import SPAN_SECONDS, Lately, Sample
from gateway.settings import Settings
from gateway.upstream.app import create_upstream_app, pool_of
from tests.gateway.support.stored_gateway import ADMIN, Gateway


@pytest.fixture
def url(tmp_path: Path) -> str:
    """One kind of database is enough: nothing here reads any."""
    (tmp_path / "test.db").touch()
    return f"sqlite+aiosqlite:///{tmp_path}/test.db"


async def overview(admin: httpx.AsyncClient) -> dict[str, Any]:
    answer = await admin.get("/overview")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_what_is_shown_of_the_engine_is_null_where_it_is_down_and_that_is_said(gateway: Gateway) -> None:
    assert (await overview(gateway.admin))["problems"] == []
    gateway.backend.is_up = False
    seen = await overview(gateway.admin)
    assert (seen["cache"], seen["requests"], seen["saved"]["device"]) == (None, None, None)
    assert seen["engine"] == {"state": "restarting: out of luck"}
    assert [problem["code"] for problem in seen["problems"]] == ["engine_restarting"]


async def test_nothing_asked_is_no_rate_of_0(gateway: Gateway) -> None:
    seen = await overview(gateway.admin)
    assert seen["tokens"] == {"prompt": 0, "cached": 0, "generated": 0, "hit_rate": None}
    assert seen["num_logged_requests"] == 0
    await gateway.chat()
    assert (await overview(gateway.admin))["num_logged_requests"] == 1


async def test_in_front_of_upstreams_there_is_no_cache_and_the_silent_ones_are_named() -> None:
    settings = Settings(admin_key="open-sesame", upstream=["http://127.0.0.1:1"])  # type: ignore[arg-type]
    app = create_upstream_app(settings, pool_of(settings))
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://gateway/admin/v1", headers=ADMIN) as admin,
    ):
        seen = await overview(admin)
    assert (seen["mode"], seen["model"], seen["cache"], seen["maximum"]) == ("upstream", None, None, None)
    (problem,) = seen["problems"]
    assert problem["code"] == "no_upstream"
    assert "http://127.0.0.1:1" in problem["text"]


async def test_errors_of_this_side_are_counted_and_those_of_other_paths_are_not(gateway: Gateway) -> None:
    for _ in range(20):
        await gateway.admin.get("/nothing")
    gateway.backend.batch_size = 0  # a mistake of ours
    for _ in range(9):
        await gateway.chat()
    assert (await overview(gateway.admin))["problems"] == []
    await gateway.chat()
    (problem,) = (await overview(gateway.admin))["problems"]
    assert problem["text"].startswith("100% of the last 10 answers")


async def test_chats_that_are_too_long_are_a_hint_at_the_context_policy_where_it_is_off(gateway: Gateway) -> None:
    for _ in range(10):
        assert (await gateway.chat(max_tokens=100_000)).status_code == 400
    (problem,) = (await overview(gateway.admin))["problems"]
    assert problem["code"] == "many_too_long"
    await gateway.admin.put("/rules/context_policy", json={"mode": "on"})
    assert (await overview(gateway.admin))["problems"] == []


async def test_cuts_at_each_request_are_said(gateway: Gateway) -> None:
    params = {"high": 0.1, "low": 0.05, "document_tokens": 100, "keep_units": 1}
    await gateway.admin.put("/rules/context_policy", json={"mode": "on", "params": params})
    document = "The quick brown fox jumps over the lazy dog. " * 20
    for number in range(20):
        answer = await gateway.chat(content=f"{document}\n\nWho is fox {number}?", max_tokens=1)
        assert answer.status_code == 200, answer.text
        (sent,) = answer.json()["context_management"]["applied_edits"][:1]
        assert sent["type"] == "stub_documents"
    assert [problem["code"] for problem in (await overview(gateway.admin))["problems"]] == ["frequent_cuts"]


@pytest.mark.parametrize(("counts", "grown"), [([5, 9], 4), ([5, 9, 3], 3), ([], 7)])
def test_growth_is_since_the_oldest_sample_and_survives_a_counter_that_begins_anew(
    counts: list[int], grown: int
) -> None:
    lately = Lately()
    for at, count in enumerate(counts):
        lately.note(Sample(at, {"n": count}))
    now = Sample(len(counts), {"n": counts[-1] if counts else 7})
    assert lately.growth(now) == {"n": grown}


def test_samples_that_are_too_old_count_no_more() -> None:
    lately = Lately()
    for at, count in ((0.0, 5), (1.0, 6), (SPAN_SECONDS + 0.5, 8)):
        lately.note(Sample(at, {"n": count}))
    assert lately.growth(Sample(SPAN_SECONDS + 0.6, {"n": 9})) == {"n": 3}


def test_waiting_lasts_since_the_last_look_without() -> None:
    lately = Lately()
    for at, num_waiting in ((0.0, 1), (5.0, 0), (10.0, 2), (15.0, 1)):
        lately.note(Sample(at, {}, num_waiting))
    assert lately.waiting_seconds(Sample(18.0, {}, 4)) == 8
    assert lately.waiting_seconds(Sample(18.0, {}, 0)) == 0
