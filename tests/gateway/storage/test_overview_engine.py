"""Behind a real engine: what the overview says is what every other place says of the same moment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from engine.config import CacheConfig, EngineConfig
from gateway.app import create_app
from gateway.backends.local import LocalBackend, Supervision
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from gateway.storage.database import Database
from gateway.storage.store import Store
from tests.gateway.support.stored_gateway import ADMIN, PEPPER
from tests.gateway.test_metrics import scrape
from tests.support.chain_worker import COMMAND

CHATS = "http://gateway/v1/chat/completions"


@pytest.fixture
async def admin(database: Database, model_files: ModelFiles) -> AsyncIterator[httpx.AsyncClient]:
    """An operator of a gateway whose pool of 40 blocks is soon full."""
    cache = CacheConfig(block_size=8, num_blocks=40, growth_reserve=0)
    backend = LocalBackend(EngineConfig(model_path="chain", cache=cache), supervision=Supervision(), command=COMMAND)
    store = Store(Database(database.url.render_as_string(hide_password=False)), PEPPER)
    settings = Settings(admin_key="open-sesame", accounting_sampling=1.0)  # type: ignore[arg-type]
    app = create_app(settings, backend, model_files, store=store)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://gateway/admin/v1", headers=ADMIN, timeout=60
        ) as client,
    ):
        assert await backend.wait_settled() == "ready"
        yield client


async def load(admin: httpx.AsyncClient) -> None:
    """Chats with hits and misses, one that is evicted and comes again, two that are refused."""
    first = "word number one " * 8
    for content in (
        first,
        first,
        "other things come " * 10,
        "then more of them " * 10,
        "and again more so " * 10,
        first,
    ):
        body = {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 4}
        assert (await admin.post(CHATS, json=body)).status_code == 200
    for wrong in ({"temperature": 9}, {"messages": 7}):
        assert (await admin.post(CHATS, json=body | wrong)).status_code == 400


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_every_number_is_that_of_the_other_places_at_the_same_moment(admin: httpx.AsyncClient) -> None:
    await load(admin)

    async def get(path: str) -> dict[str, Any]:
        answer = await admin.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    savings, losses, (hour,) = await get("/savings"), await get("/losses"), (await get("/history"))["data"]
    (tenant,) = (await get("/usage/tenants"))["data"]  # no other owner of blocks
    points = (await get("/series"))["points"]
    seen, cache = await get("/overview"), await get("/cache")
    series = await scrape(admin_root(admin))

    def metric(name: str) -> float:
        return series[f"prefixgate_{name}"]

    tokens = seen["tokens"]
    assert 0 < tokens["cached"] < tokens["prompt"]
    assert tokens["prompt"] == metric("prompt_tokens_total") == hour["num_prompt_tokens"] == tenant["prompt_tokens"]
    assert tokens["cached"] == metric("cached_tokens_total") == hour["num_cached_tokens"] == tenant["cached_tokens"]
    assert tokens["generated"] == metric("generated_tokens_total") == hour["num_output_tokens"]
    assert tokens["prompt"] == cache["counters"]["prompt_tokens"] == savings["prompt_tokens"]
    for name in ("prompt", "cached"):
        assert tokens[name] == sum(point[f"{name}_tokens"] or 0 for point in points)
    assert tokens["hit_rate"] == tenant["hit_rate"] == tokens["cached"] / tokens["prompt"]
    assert seen["saved"] == {"tokens": tokens["cached"], "seconds": metric("saved_seconds_total"), "device": "cpu"}
    assert seen["saved"]["seconds"] > 0

    assert cache["counters"]["evicted_blocks"] > 0
    shown = seen["cache"]
    assert shown.pop("evicted_blocks") == metric("engine_events_total[evicted_blocks]")
    assert shown.pop("block_size") == metric("block_size_tokens") == 8
    assert shown.pop("block_bytes") % 8 == 0
    assert shown == {name: cache[name] for name in shown}
    states = ("free", "cached", "active_private", "active_shared")
    assert sum(shown[f"{state}_blocks"] for state in states) == shown["total_blocks"] == metric("total_blocks") == 40
    assert tenant["cache_blocks"] == shown["cached_blocks"]
    assert tenant["cache_share"] == shown["cached_blocks"] / 40
    for lane in ("short", "long"):
        assert seen["requests"]["running"][lane] == metric(f"requests_running[{lane}]") == 0
        assert seen["requests"]["waiting"][lane] == metric(f"requests_waiting[{lane}]") == 0

    maximum = seen["maximum"]
    assert maximum["sampling"] == savings["sampling"] == losses["sampling"] == 1
    assert maximum["prompt_tokens"] == savings["sampled_prompt_tokens"] == losses["prompt_tokens"] == tokens["prompt"]
    assert maximum["cached_tokens"] == metric("sampled_cached_tokens_total") == losses["cached_tokens"]
    assert maximum["possible_tokens"] == metric("possible_tokens_total") == losses["possible_tokens"]
    assert maximum["hit_rate"] == tokens["hit_rate"] < maximum["max_hit_rate"]

    for label in ("hit", "miss"):
        times = seen["first_token_seconds"][label]
        assert times["count"] == metric(f"time_to_first_token_seconds_count[{label}]") > 0
        assert 0 < times["p50"] <= times["p95"]
    assert seen["num_logged_requests"] == hour["num_requests"] == tenant["requests"] == 8
    assert tenant["errors"] == hour["num_errors"] == 2
    (problem,) = seen["problems"]
    evicted, looked_up = (
        metric("prompt_blocks_total[evicted]"),
        sum(value for name, value in series.items() if name.startswith("prefixgate_prompt_blocks_total")),
    )
    assert problem["code"] == "small_pool"
    assert f"{evicted / looked_up:.0%} of the blocks" in problem["text"]


def admin_root(admin: httpx.AsyncClient) -> httpx.AsyncClient:
    """The same gateway without the path of its admin API."""
    return httpx.AsyncClient(transport=admin._transport, base_url="http://gateway")
