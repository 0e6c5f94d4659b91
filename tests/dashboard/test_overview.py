"""The overview: its charts break where nothing came."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Page


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
