"""The overview: every figure is the API's of the same moment, and the pool's bar is in its proportions."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.dashboard.support.browser import axe, login
from tests.dashboard.support.served import ServedGateway
from tests.dashboard.support.traffic import Traffic


async def test_figures_are_the_api_s(page: Page, gateway: ServedGateway, traffic: Traffic) -> None:
    await login(page)
    await expect(page.get_by_role("heading", name="Block pool")).to_be_visible()
    overview = await gateway.get("/overview")
    figures = page.locator("[data-figure]")
    assert await figures.count() > 20
    await expect(page.locator("[data-figure='context.cleared_tokens']")).to_be_visible()
    for name, value in await figures.evaluate_all("all => all.map(one => [one.dataset.figure, one.dataset.value])"):
        assert (float(value) if value else None) == value_at(overview, name), name
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
