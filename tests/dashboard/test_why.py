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
from tests.dashboard.support.browser import Faults, axe, login
from tests.dashboard.support.served import ServedGateway
from tests.dashboard.support.traffic import RULE, Traffic

MODULES = Path(gateway.dashboard.__file__).parent / "static" / "js"
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


@pytest_asyncio.fixture(loop_scope="session")
async def rule_again(gateway: ServedGateway) -> AsyncIterator[None]:
    """The rule as the traffic left it, for other tests."""
    yield
    async with gateway.admin() as client:
        await client.put(f"/rules/{RULE}", json={"mode": "audit"})


async def test_rule_in_audit_mode_is_turned_on(
    page: Page, gateway: ServedGateway, traffic: Traffic, faults: Faults, rule_again: None
) -> None:
    faults.allow("v1/(losses|series)")
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


async def test_rule_keeps_its_parameters_and_gets_those_of_its_audit(page: Page) -> None:
    await page.goto("/dashboard")
    assumed = {"params": {}, "audit_params": {"kinds": ["clock"]}}
    chosen = {"params": {"kinds": ["uuid"]}, "audit_params": {"kinds": ["clock"]}}
    script = "async ([rule, mode]) => (await import('/dashboard/js/rule_switch.js')).paramsFor(rule, mode)"
    assert await page.evaluate(script, [assumed, "on"]) == {"kinds": ["clock"]}
    assert await page.evaluate(script, [assumed, "audit"]) == {}
    assert await page.evaluate(script, [chosen, "on"]) == {"kinds": ["uuid"]}


async def test_waterfall_ends_at_what_came_from_the_cache(page: Page) -> None:
    await page.goto("/dashboard")
    script = "async (losses) => { const m = await import('/dashboard/js/waterfall.js'); return m.stepsOf(losses); }"
    steps = await page.evaluate(script, LOSSES)
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
