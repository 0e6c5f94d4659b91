from __future__ import annotations

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.gateway.support.fake_backend import TOKENS_PER_SECOND, FakeBackend
from tests.gateway.test_chat import PATH, chat

Series = dict[str, float]


async def scrape(client: httpx.AsyncClient) -> Series:
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def growth(before: Series, after: Series) -> Series:
    return {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}


@pytest.mark.parametrize("stream", [False, True])
async def test_two_scrapes_around_a_cached_request_differ_by_exactly_its_tokens(
    client: httpx.AsyncClient, backend: FakeBackend, stream: bool
) -> None:
    await client.post(PATH, json=chat("one"))
    before = await scrape(client)
    answer = await client.post(PATH, json=chat("two", stream=stream))
    grown = growth(before, await scrape(client))
    report = dict(part.split("=") for part in answer.headers["x-prefixgate-cache"].split("; "))
    num_blocks = int(report["prompt"]) // 8
    num_cached_blocks = int(report["cached"]) // 8
    assert num_cached_blocks > 0
    cache = "hit" if 2 * int(report["cached"]) >= int(report["prompt"]) else "miss"
    for name in [name for name in grown if "_sum" in name or "_bucket" in name]:
        del grown[name]
    assert grown.pop("prefixgate_blocks[cached]") + grown.pop("prefixgate_blocks[free]") == 0
    assert grown == {
        "prefixgate_prompt_tokens_total": int(report["prompt"]),
        "prefixgate_cached_tokens_total": int(report["cached"]),
        "prefixgate_saved_seconds_total": int(report["cached"]) / TOKENS_PER_SECOND,
        "prefixgate_generated_tokens_total": len(backend.reply),
        "prefixgate_prompt_blocks_total[hit]": num_cached_blocks,
        "prefixgate_prompt_blocks_total[diverged]": num_blocks - num_cached_blocks,
        "prefixgate_requests_total[/v1/chat/completions][200]": 1,
        "prefixgate_requests_total[/metrics][200]": 1,
        f"prefixgate_time_to_first_token_seconds_count[{cache}]": 1,
        "prefixgate_inter_token_seconds_count": len(backend.reply) - 1,
        "prefixgate_request_seconds_count": 1,
    }


async def test_series_of_the_engine_are_shown(client: httpx.AsyncClient) -> None:
    series = await scrape(client)
    assert series["prefixgate_blocks[free]"] == series["prefixgate_total_blocks"] == 1000
    assert sum(number for name, number in series.items() if name.startswith("prefixgate_blocks[")) == 1000
    assert series["prefixgate_blocks[active_private]"] == series["prefixgate_blocks[active_shared]"] == 0
    lanes = [f"prefixgate_requests_{state}[{lane}]" for state in ("running", "waiting") for lane in ("short", "long")]
    assert [series[name] for name in lanes] == [0] * 4
    assert series["prefixgate_engine_events_total[evicted_blocks]"] == 3


async def test_series_of_an_engine_that_is_down_are_left_out(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    await client.get("/metrics")
    backend.is_up = False
    series = await scrape(client)
    assert not any("blocks" in name or "running" in name or "events" in name for name in series)
    assert series["prefixgate_prompt_tokens_total"] == 0


async def test_refused_requests_count_no_tokens(client: httpx.AsyncClient) -> None:
    before = await scrape(client)
    await client.post(PATH, json=chat(temperature=9))
    await client.post("/some/path", json={})
    assert growth(before, await scrape(client)) == {
        "prefixgate_requests_total[/v1/chat/completions][400]": 1,
        "prefixgate_requests_total[other][404]": 1,
        "prefixgate_requests_total[/metrics][200]": 1,
    }


async def test_unknown_fields_are_counted_under_a_few_names(client: httpx.AsyncClient) -> None:
    await client.post(PATH, json=chat(metadata={}, made_up=1, made_up_too=2))
    series = await scrape(client)
    assert series["prefixgate_unknown_fields_total[metadata]"] == 1
    assert series["prefixgate_unknown_fields_total[other]"] == 2
    assert not any("made_up" in name for name in series)


async def test_unforeseen_errors_count_as_500(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    backend.batch_size = 0
    await client.post(PATH, json=chat())
    assert (await scrape(client))["prefixgate_requests_total[/v1/chat/completions][500]"] == 1
