"""What the other tests here rest on can fail: the watch over a page, axe, and traffic that shows something."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser

from tests.dashboard.support.browser import Faults, axe, opened_page
from tests.dashboard.support.served import ServedGateway
from tests.dashboard.support.traffic import PROMPT, RULE, TENANTS, Traffic

FAULTY = {
    "console": "<script>console.error('oh')</script>",
    "uncaught": "<script>throw new Error('oh')</script>",
    "failed": "<script>fetch('http://127.0.0.1:9/').catch(() => 0)</script>",
    "another host": "<img src='http://127.0.0.1:9/x.png' alt=''>",
}


@pytest.mark.parametrize("kind", FAULTY)
async def test_faults_of_a_page_are_seen(browser: Browser, gateway: ServedGateway, kind: str) -> None:
    faults = Faults()
    async with opened_page(browser, gateway.url, faults) as page:
        await page.set_content(f"<!doctype html><title>x</title>{FAULTY[kind]}", wait_until="networkidle")
    assert any(fault.startswith(kind) for fault in faults.found()), faults.found()
    faults.allow(kind, "ERR_", "127.0.0.1:9")
    assert faults.found() == []


async def test_page_that_nobody_can_read_fails(browser: Browser, gateway: ServedGateway) -> None:
    async with opened_page(browser, gateway.url, Faults()) as page:
        await page.set_content("<!doctype html><html lang=en><title>x</title><main><h1>x</h1><p>plain</p></main>")
        await axe(page)
        await page.set_content("<!doctype html><html lang=en><title>x</title><main><h1>x</h1><button></button></main>")
        with pytest.raises(AssertionError, match="button-name"):
            await axe(page, within="main")
        await axe(page, within="h1")


async def test_traffic_has_all_that_pages_show(gateway: ServedGateway, traffic: Traffic) -> None:
    assert {tenant["name"] for tenant in (await gateway.get("/tenants"))["data"]} >= set(TENANTS)
    savings = {(row["rule"], row["mode"]): row for row in (await gateway.get("/savings"))["rules"]}
    assert savings[RULE, "audit"]["net_tokens"] > 100
    counters = (await gateway.get("/cache"))["counters"]
    assert counters["evicted_blocks"] > 0
    assert counters["cached_tokens"] > 0
    prompt = await gateway.get(f"/prompts/{PROMPT}")
    assert prompt["active_version"] == 1
    assert prompt["warm"]["status"] == "warm"
    assert [text["count"] for text in (await gateway.get(f"/prompts/{PROMPT}/drift"))["variants"]] == [1]
    statuses = {row["status"] for row in (await gateway.get("/requests"))["data"]}
    assert statuses == {200, 400, 404, 429}
