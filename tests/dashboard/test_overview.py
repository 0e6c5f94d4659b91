"""The overview: its charts break where nothing came."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.dashboard.support.browser import Faults, axe, login
from tests.dashboard.support.served import ServedGateway
from tests.dashboard.support.traffic import Traffic


async def test_figures_are_the_api_s(page: Page, gateway: ServedGateway, traffic: Traffic, faults: Faults) -> None:
    faults.allow("v1/series")
    await login(page)
    await expect(page.get_by_role("heading", name="Block pool")).to_be_visible()
    overview = await gateway.get("/overview")
    figures = page.locator("[data-figure]")
    assert await figures.count() > 20
    for name, value in await figures.evaluate_all("all => all.map(one => [one.dataset.figure, one.dataset.value])"):
        assert value == text_of(value_at(overview, name)), name
    pool = page.locator(".pool")
    await expect(pool).to_have_attribute(
        "aria-label", re.compile(f"pool of {overview['cache']['total_blocks']} blocks")
    )
    widths = await pool.locator(".pool-state").evaluate_all("all => all.map(one => one.getBoundingClientRect().width)")
    shown = (await pool.bounding_box() or {})["width"]
    assert sum(widths) == pytest.approx(shown, rel=0.01)
    assert widths[1] / shown == pytest.approx(
        overview["cache"]["cached_blocks"] / overview["cache"]["total_blocks"], abs=0.01
    )
    await axe(page)


def value_at(answer: Any, path: str) -> Any:
    for key in path.split("."):
        answer = None if answer is None else answer[key]
    return answer


def text_of(value: float | None) -> str:
    """As JavaScript writes it."""
    return "" if value is None else str(int(value)) if value == int(value) else repr(value)


async def test_line_breaks_where_there_was_no_traffic(page: Page) -> None:
    await page.goto("/dashboard")
    script = "async (series) => (await import('/dashboard/js/series.js')).hitRateFigure(series, 1).data"
    series = {
        "since": at(0),
        "until": at(30),
        "step": 60,
        "points": [point(3, cached=50), point(4, cached=0), point(9, cached=80), point(10, prompt=0)],
    }
    rate, maximum = await page.evaluate(script, series)
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
