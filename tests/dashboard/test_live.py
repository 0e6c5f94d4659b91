"""Numbers that live: they move under load, a rule that is turned on moves them up, and what is old says so."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import Browser, Page, Route, expect

from tests.dashboard.support.browser import Faults, login, opened_page
from tests.dashboard.support.served import ADMIN_KEY, ServedGateway, serving
from tests.dashboard.support.traffic import RULE, Traffic


async def shown(page: Page, figure: str) -> float:
    """The exact value that the page shows now; 0 where it has none yet."""
    return float(await page.locator(f"[data-figure='{figure}']").first.get_attribute("data-value") or 0)


async def grows(page: Page, figure: str, above: float) -> float:
    """Wait until the page shows more, without any help."""
    script = "([figure, above]) => Number(document.querySelector(`[data-figure='${figure}']`)?.dataset.value) > above"
    await page.wait_for_function(script, arg=[figure, above], timeout=10_000)
    return await shown(page, figure)


async def test_hit_rate_rises_before_the_operators_eyes(browser: Browser, tmp_path: Path, faults: Faults) -> None:
    """With a gateway and an engine of its own, so that nothing is cached and no rule was touched."""
    with serving(tmp_path) as gateway:
        traffic = Traffic(gateway)
        await traffic.prepare()
        async with opened_page(browser, gateway.url, faults) as page:
            await login(page)
            before = await chats(page, traffic)
            await page.get_by_role("link", name="Why not higher").click()
            rule = page.get_by_role("listitem").filter(has=page.get_by_role("heading", name=RULE))
            await rule.get_by_role("button", name="Turn on").click()
            await page.get_by_role("dialog").get_by_role("button", name="Turn on for everybody").click()
            await expect(rule.get_by_role("button", name="Turn off")).to_be_visible()
            await page.get_by_role("link", name="Overview").click()
            after = await chats(page, traffic)
            assert after > before + 0.2, (before, after)
            points = (await gateway.get("/series", step=60))["points"]
            assert sum(point["cached_tokens"] for point in points) == await shown(page, "tokens.cached")
        await traffic.close()


async def chats(page: Page, traffic: Traffic) -> float:
    """Hold the same chats once more, and give the hit rate of what the open page counted meanwhile."""
    names = ("tokens.prompt", "tokens.cached")
    await expect(page.locator(f"[data-figure='{names[0]}']").first).to_be_visible()
    prompt, cached = [await shown(page, name) for name in names]
    await traffic.chats(3, 3)
    counted = await traffic.tokens()
    script = "([figure, value]) => document.querySelector(`[data-figure='${figure}']`)?.dataset.value == value"
    for name, value in zip(names, counted, strict=True):
        await page.wait_for_function(script, arg=[name, str(value)], timeout=10_000)
    return (counted[1] - cached) / (counted[0] - prompt)


async def test_numbers_go_on_without_events_and_say_when_they_are_old(
    page: Page, gateway: ServedGateway, traffic: Traffic, faults: Faults
) -> None:
    faults.allow("ERR_FAILED", "ERR_INCOMPLETE_CHUNKED_ENCODING")
    await page.clock.install()
    await page.route("**/admin/v1/live", refuse)
    await login(page)
    badge = page.locator("#freshness")
    await page.clock.run_for(2_000)
    await expect(badge).to_have_text("Every 5 s")
    requests = await shown(page, "tokens.prompt")
    await traffic.desk(1)
    await page.clock.run_for(6_000)
    await grows(page, "tokens.prompt", requests)
    await page.route("**/admin/v1/overview", refuse)
    await page.clock.run_for(20_000)
    await expect(badge).to_contain_text("Stale")
    await page.unroute("**/admin/v1/overview")
    await page.clock.run_for(6_000)
    await expect(badge).to_have_text("Every 5 s")


async def refuse(route: Route) -> None:
    """As a network that is gone."""
    await route.abort()


async def test_session_that_ends_leads_to_the_login_and_back(
    page: Page, gateway: ServedGateway, traffic: Traffic, faults: Faults
) -> None:
    faults.allow("401 .Unauthorized.")
    await login(page, route="/tenants")
    await expect(page.get_by_role("heading", name="Tenants")).to_be_visible()
    await page.context.clear_cookies()
    await page.evaluate("location.hash = '#/prompts'")  # not a click: a refresh may have put the links away by now
    await expect(page.get_by_role("heading", name="The session has ended")).to_be_visible()
    await page.get_by_label("Admin key").fill(ADMIN_KEY)
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("heading", name="Prompts")).to_be_visible()
