"""Why not higher: the sums close, each reason and rule has its words, and a rule is turned on from the page."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

import gateway.dashboard
from gateway.normalize.rules import built_in_rules
from prefixcache.interface import Reason
from tests.dashboard.support.browser import axe, login
from tests.dashboard.support.served import ServedGateway
from tests.dashboard.support.traffic import RULE, Traffic

MODULES = Path(gateway.dashboard.__file__).parent / "static" / "js"


@pytest_asyncio.fixture(loop_scope="session")
async def rule_again(gateway: ServedGateway) -> AsyncIterator[None]:
    """The rule as the traffic left it, for other tests."""
    yield
    async with gateway.admin() as client:
        await client.put(f"/rules/{RULE}", json={"mode": "audit"})


async def test_rule_in_audit_mode_is_turned_on(
    page: Page, gateway: ServedGateway, traffic: Traffic, rule_again: None
) -> None:
    await login(page)
    await page.get_by_role("link", name="Why not higher").click()
    rule = page.get_by_role("listitem").filter(has=page.get_by_role("heading", name=RULE))
    rows = (await gateway.get("/savings"))["rules"]
    (index,) = [index for index, row in enumerate(rows) if (row["rule"], row["mode"]) == (RULE, "audit")]
    told = rule.locator(f"[data-figure='rules.{index}.net_tokens']")
    await expect(told).to_have_attribute("data-value", str(rows[index]["net_tokens"]))
    await axe(page)
    await rule.get_by_role("button", name="Turn on").click()
    await page.get_by_role("dialog").get_by_role("button", name="Turn on for everybody").click()
    await expect(rule.get_by_text("on", exact=True)).to_be_visible()
    await expect(rule.get_by_role("button", name="Turn off")).to_be_focused()
    assert await mode_of(gateway, RULE) == "on"


async def test_waterfall_and_lists_are_the_api_s(page: Page, gateway: ServedGateway, traffic: Traffic) -> None:
    losses = await gateway.get("/losses")
    assert losses["top"], "the traffic lost nothing"
    await login(page)
    await page.get_by_role("link", name="Why not higher").click()
    await page.get_by_text("Show as a table").click()
    cells = page.get_by_role("region", name="Tokens of the last 24 hours").locator("tbody tr > :nth-child(2)")
    await expect(cells.first).to_be_visible()
    prompt, new, possible, *lost, cached = [int(text.replace(",", "")) for text in await cells.all_inner_texts()]
    assert (prompt, possible, cached) == (losses["prompt_tokens"], losses["possible_tokens"], losses["cached_tokens"])
    assert sorted(lost) == sorted(-loss["tokens"] for loss in losses["lost"])
    assert (prompt + new, possible + sum(lost)) == (possible, cached)
    for index, miss in enumerate(losses["top"]):
        told = page.locator(f"[data-figure='top.{index}.lost_tokens']")
        await expect(told).to_have_attribute("data-value", str(miss["lost_tokens"]))
    await page.get_by_role("link", name=f"Explain request {losses['top'][0]['completion_id']}").click()
    await expect(page).to_have_url(re.compile(f"#/requests/{losses['top'][0]['completion_id']}$"))


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("rule_words", [rule.name for rule in built_in_rules().rules]),
        ("loss_words", ["rule_off", "unexplained", *({*Reason} - {Reason.HIT, Reason.COPIED})]),
    ],
)
def test_everything_that_can_be_shown_has_words(module: str, names: list[str]) -> None:
    worded = re.findall(r"^  (\w+): [\"{]", (MODULES / f"{module}.js").read_text(), re.MULTILINE)
    assert set(names) <= set(worded)


async def mode_of(gateway: ServedGateway, name: str) -> str:
    return next(rule["mode"] for rule in (await gateway.get("/rules"))["data"] if rule["name"] == name)
