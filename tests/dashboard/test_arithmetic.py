"""What pages work out by themselves: sums that close, lines that break, parameters that stay."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio
from playwright.async_api import Browser, Page

from tests.dashboard.support.browser import Faults, opened_page
from tests.dashboard.support.served import ServedGateway

LOSSES = {
    "sampling": 1,
    "prompt_tokens": 61_000,
    "unseen_tokens": 5_000,
    "possible_tokens": 56_000,
    "cached_tokens": 45_000,
    "lost": [
        {"reason": "rule_off", "region": "system", "tokens": 6_000},
        {"reason": "cold_restart", "region": "system", "tokens": 600},
        {"reason": "evicted", "region": "user", "tokens": 4_500},
        {"reason": "unexplained", "region": "unknown", "tokens": -100},
    ],
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def anywhere(browser: Browser, gateway: ServedGateway) -> AsyncIterator[Page]:
    """A page from which modules can be loaded; nobody is logged in."""
    async with opened_page(browser, gateway.url, Faults()) as page:
        await page.goto("/dashboard")
        yield page


async def test_rule_keeps_its_parameters_and_gets_those_of_its_audit(anywhere: Page) -> None:
    assumed = {"params": {}, "audit_params": {"kinds": ["clock"]}}
    chosen = {"params": {"kinds": ["uuid"]}, "audit_params": {"kinds": ["clock"]}}
    script = "async ([rule, mode]) => (await import('/dashboard/js/rule_switch.js')).paramsFor(rule, mode)"
    assert await anywhere.evaluate(script, [assumed, "on"]) == {"kinds": ["clock"]}
    assert await anywhere.evaluate(script, [assumed, "audit"]) == {}
    assert await anywhere.evaluate(script, [chosen, "on"]) == {"kinds": ["uuid"]}


async def test_waterfall_ends_at_what_came_from_the_cache(anywhere: Page) -> None:
    script = "async (losses) => { const m = await import('/dashboard/js/waterfall.js'); return m.stepsOf(losses); }"
    steps = await anywhere.evaluate(script, LOSSES)
    assert [step["label"] for step in steps] == [
        "All prompt tokens",
        "New text",
        "Possible",
        "Rule not on, system text",
        "Evicted, users' messages",
        "Other (2)",
        "From the cache",
    ]
    left = 0
    for step in steps:
        if step.get("isLevel") and left:
            assert step["tokens"] == left, step
        left = step["tokens"] if step.get("isLevel") else left - step["tokens"]
    assert left == LOSSES["cached_tokens"]


async def test_larger_pool_is_told_in_blocks_and_bytes(anywhere: Page) -> None:
    script = "async ([losses, cache]) => (await import('/dashboard/js/losses.js')).roomInWords(losses, cache)"
    sizes = [{"blocks": 64, "tokens": 40}, {"blocks": 512, "tokens": 60}, {"blocks": 4096, "tokens": 100}]
    cache = {"total_blocks": 600, "block_bytes": 1024**2}
    words = await anywhere.evaluate(script, [{"larger_pool": sizes}, cache])
    assert "half with 512 blocks more, 512 MiB, and nine tenths with 4,096 blocks more, 4.0 GiB" in words
    assert await anywhere.evaluate(script, [{"larger_pool": []}, cache]) == ""


async def test_line_breaks_where_there_was_no_traffic(anywhere: Page) -> None:
    script = "async (series) => (await import('/dashboard/js/series.js')).hitRateFigure(series, 1).data"
    series = {
        "since": at(0),
        "until": at(30),
        "step": 60,
        "points": [point(3, cached=50), point(4, cached=0), point(9, cached=80), point(10, prompt=0)],
    }
    rate, maximum = await anywhere.evaluate(script, series)
    assert rate["y"] == [0.5, 0, None, 0.8, None]
    assert maximum["y"] == [0.9, 0.9, None, 0.9, None]


def at(minute: int) -> str:
    return f"2031-05-06T07:{minute:02}:00.000Z"


def point(minute: int, *, prompt: int = 100, cached: int = 0) -> dict[str, Any]:
    return {
        "at": at(minute),
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "sampled_prompt_tokens": prompt,
        "sampled_cached_tokens": cached,
        "possible_tokens": prompt * 9 // 10,
    }
