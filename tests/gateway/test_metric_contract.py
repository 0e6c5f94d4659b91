"""What the numbers promise: counted once, at admission, by the engine's word, and never a 0 for "unknown"."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.config import CacheConfig, EngineConfig
from gateway.app import create_app
from gateway.backends.local import LocalBackend, Supervision
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from prefixcache.interface import PrefixCacheConfig
from tests.gateway.conftest import open_client
from tests.gateway.support.fake_backend import BLOCK_SIZE, FakeBackend
from tests.gateway.support.server import until
from tests.gateway.test_chat import PATH, chat
from tests.gateway.test_metrics import growth, scrape
from tests.support.chain_worker import COMMAND

TOKENS = ("prompt_tokens", "cached_tokens", "generated_tokens")


async def types_of(client: httpx.AsyncClient) -> dict[str, str]:
    text = (await client.get("/metrics")).text
    return {family.name: family.type for family in text_string_to_metric_families(text)}


@pytest.fixture
async def small_engine(model_files: ModelFiles) -> AsyncIterator[httpx.AsyncClient]:
    """A real worker with memory for two of the requests below, without a reserve that would keep the others out."""
    cache = CacheConfig(block_size=8, num_blocks=48, growth_reserve=0)
    backend = LocalBackend(EngineConfig(model_path="chain", cache=cache), supervision=Supervision(), command=COMMAND)
    app = create_app(Settings(), backend, model_files)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=60) as client,
    ):
        assert await backend.wait_settled() == "ready"
        yield client


async def test_prompt_that_is_computed_again_after_preemption_counts_once(small_engine: httpx.AsyncClient) -> None:
    before = await scrape(small_engine)
    assert all(
        before[f"prefixgate_{name}_total"] == 0 for name in TOKENS
    )  # the worker's own warm-up is nobody's prompt
    bodies = [chat(f"{number} " * 10, ignore_eos=True, max_tokens=120) for number in range(5)]
    answers = await asyncio.gather(*(small_engine.post(PATH, json=body) for body in bodies))
    usages = [answer.json()["usage"] for answer in answers]
    grown = growth(before, await scrape(small_engine))
    assert grown["prefixgate_engine_events_total[preemptions]"] > 0
    assert grown["prefixgate_prompt_tokens_total"] == sum(usage["prompt_tokens"] for usage in usages)
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert grown.get("prefixgate_cached_tokens_total", 0) == cached
    assert grown["prefixgate_generated_tokens_total"] == 5 * 120


async def test_nothing_counts_before_admission_and_all_of_it_then(
    backend: FakeBackend, model_files: ModelFiles
) -> None:
    backend.admit = asyncio.Event()
    backend.fail_after = 0
    async with open_client(backend, model_files) as client:
        before = await scrape(client)
        asked = asyncio.ensure_future(client.post(PATH, json=chat()))
        await until(lambda: backend.live)
        waiting = growth(before, await scrape(client))
        assert not any("tokens" in name or "prompt_blocks" in name for name in waiting)
        backend.admit.set()
        assert (await asked).status_code == 503
        grown = growth(before, await scrape(client))
    num_prompt_tokens = len(backend.requests[0].token_ids)
    assert grown["prefixgate_prompt_tokens_total"] == num_prompt_tokens
    assert grown["prefixgate_prompt_blocks_total[never_cached]"] == num_prompt_tokens // BLOCK_SIZE
    assert "prefixgate_generated_tokens_total" not in grown


async def test_sums_are_counters_and_states_are_gauges(client: httpx.AsyncClient) -> None:
    await client.post(PATH, json=chat())
    types = await types_of(client)
    for name in (
        *TOKENS,
        "prompt_blocks",
        "requests",
        "aborted_requests",
        "unknown_fields",
        "engine_events",
        "limited_requests",
    ):
        assert types[f"prefixgate_{name}"] == "counter", name
    for name in ("blocks", "total_blocks", "requests_running", "block_size_tokens", "min_reuse_tokens"):
        assert types[f"prefixgate_{name}"] == "gauge", name
    # A quotient of counters is the reader's to form.
    assert not any(name.endswith(("_ratio", "_rate")) for name in types)


async def test_no_data_is_absent_and_nothing_yet_is_zero(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    up = await scrape(client)
    assert all(up[f"prefixgate_{name}_total"] == 0 for name in TOKENS)
    assert up["prefixgate_shared_blocks"] == up["prefixgate_requests_waiting[long]"] == 0
    backend.is_up = False
    down = await scrape(client)
    assert {name.partition("[")[0] for name in up.keys() - down.keys()} == {
        "prefixgate_blocks",
        "prefixgate_total_blocks",
        "prefixgate_shared_blocks",
        "prefixgate_pinned_blocks",
        "prefixgate_shared_blocks_max",
        "prefixgate_pinned_blocks_max",
        "prefixgate_shared_blocks_limit",
        "prefixgate_pinned_blocks_limit",
        "prefixgate_requests_running",
        "prefixgate_requests_waiting",
        "prefixgate_engine_events_total",
        "prefixgate_block_size_tokens",
        "prefixgate_min_reuse_tokens",
    }
    assert not any("database" in name or "request_log" in name for name in up)  # this gateway has none


async def test_floor_of_reuse_is_published(client: httpx.AsyncClient) -> None:
    series = await scrape(client)
    assert series["prefixgate_block_size_tokens"] == BLOCK_SIZE
    assert series["prefixgate_min_reuse_tokens"] == PrefixCacheConfig(num_blocks=1).min_partial_tokens


async def test_no_label_names_a_tenant_a_key_or_a_request(client: httpx.AsyncClient) -> None:
    await client.post(PATH, json=chat(), headers={"x-request-id": "mine"})
    text = (await client.get("/metrics")).text
    labels = {label for f in text_string_to_metric_families(text) for sample in f.samples for label in sample.labels}
    few = {
        "endpoint",
        "status",
        "reason",
        "region",
        "field",
        "state",
        "event",
        "le",
        "rule",
        "mode",
        "limit",
        "lane",
        "cache",
        "type",
    }
    assert labels <= few
    assert "mine" not in text
