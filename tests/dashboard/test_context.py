"""Long chats: what was left out of them is shown as the API tells it, and the policy is set from the page."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Page, expect

import gateway.dashboard
from gateway.context import clearing, thoughts
from gateway.context.metrics import CLEARING
from gateway.context.policy import ContextPolicy
from tests.dashboard.support.browser import NARROW, Faults, OpenPage, axe, login
from tests.dashboard.support.served import ServedGateway
from tests.dashboard.support.traffic import ARCHIVE_TENANT, Traffic

WORDS = Path(gateway.dashboard.__file__).parent / "static" / "js" / "context_words.js"
RULE = "context_policy"


@pytest_asyncio.fixture(loop_scope="session")
async def policy_off_again(gateway: ServedGateway) -> AsyncIterator[None]:
    yield
    async with gateway.admin() as client:
        await client.delete(f"/rules/{RULE}")


async def test_cut_request_is_marked_and_tells_what_was_left_out(
    page: Page, gateway: ServedGateway, traffic: Traffic
) -> None:
    rows = (await gateway.get("/requests", tenant=ARCHIVE_TENANT))["data"]
    for row in rows:
        if (await gateway.get(f"/requests/{row['completion_id']}/explain"))["context_cut"]:
            break
    else:
        raise AssertionError("no chat was cut")
    await login(page, route=f"/requests?tenant={row['tenant']}")
    links = page.get_by_role("region", name="Requests, newest first").get_by_role("row")
    await expect(links.nth(1)).to_be_visible()
    shown = {await line.get_by_role("link").inner_text() for line in await links.filter(has_text="cut").all()}
    assert shown == {entry["completion_id"] for entry in rows if entry["context_management"]["applied_edits"]}
    await page.get_by_role("link", name=row["completion_id"]).click()
    figures = page.locator("[data-figure^='context_management']")
    await expect(figures.first).to_be_visible()
    told = dict(await figures.evaluate_all("all => all.map(one => [one.dataset.figure, Number(one.dataset.value)])"))
    context = row["context_management"]
    assert told.pop("context_management.original_input_tokens") == context["original_input_tokens"]
    assert told.pop("context_management.input_tokens") == context["input_tokens"] == row["num_prompt_tokens"]
    edits = [(edit["count"], edit["cleared_input_tokens"]) for edit in context["applied_edits"]]
    assert list(told.values()) == [value for edit in edits for value in edit]
    await expect(page.get_by_text("Cut to fit")).to_be_visible()
    await expect(page.get_by_role("button", name="Turn on for everybody")).to_have_count(0)
    await axe(page)


async def test_policy_is_set_with_its_parameters(
    open_page: OpenPage, gateway: ServedGateway, traffic: Traffic, faults: Faults, policy_off_again: None
) -> None:
    async with open_page(width=NARROW, dark=True) as page:
        await login(page, route="/why")
        await page.get_by_text(re.compile(r"^Off \(")).click()
        rule = page.get_by_role("listitem").filter(has=page.get_by_role("heading", name=RULE))
        await expect(rule).to_contain_text(f"on for {await _tenant_id(gateway)}")
        await rule.get_by_role("button", name="Audit").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Cut above").fill("0.4")
        await dialog.get_by_label("Tools left alone").fill("find, look up")
        await dialog.get_by_label("Summary", exact=True).select_option("off")
        await axe(page, within="dialog")
        assert await page.evaluate("document.documentElement.scrollWidth") <= NARROW
        await dialog.get_by_role("button", name="Audit for everybody").click()
        faults.allow("400 .Bad Request.")
        await expect(dialog).to_contain_text("low: got 0.5, wanted less than high")
        await dialog.get_by_label("Cut down to").fill("0.2")
        await dialog.get_by_role("button", name="Audit for everybody").click()
        await expect(rule.get_by_text("audit", exact=True)).to_be_visible()
        params = {"high": 0.4, "low": 0.2, "exclude_tools": ["find", "look up"], "summary": "off"}
        assert await _choice(gateway) == ("audit", params)
        await rule.get_by_role("button", name="Parameters").click()
        await expect(dialog.get_by_label("Cut above")).to_have_value("0.4")
        await dialog.get_by_label("Cut above").fill("")
        await dialog.get_by_role("button", name="Audit for everybody").click()
        await expect(dialog).to_have_count(0)
        del params["high"]
        assert await _choice(gateway) == ("audit", params)
        await rule.get_by_role("button", name="Turn off").click()
        await dialog.get_by_role("button", name="Turn off for everybody").click()
        await expect(dialog).to_have_count(0)
        assert await _choice(gateway) == ("off", params)


def test_page_has_words_for_each_edit() -> None:
    worded = re.findall(r"^  (\w+): \[", WORDS.read_text(), re.MULTILINE)
    assert set(worded) == {*CLEARING, "passages", clearing.KIND, thoughts.KIND}


def test_page_knows_each_parameter_as_it_is_when_nothing_is_chosen() -> None:
    presets = re.findall(r"^  (\w+): \{ preset: ([^,]+?), label", WORDS.read_text(), re.MULTILINE)
    wanted = {
        name: list(value) if isinstance(value, tuple) else value for name, value in asdict(ContextPolicy()).items()
    }
    assert {name: json.loads(value) for name, value in presets} == wanted


async def _choice(gateway: ServedGateway) -> tuple[str, dict[str, object]]:
    (rule,) = [rule for rule in (await gateway.get("/rules"))["data"] if rule["name"] == RULE]
    return rule["mode"], rule["params"]


async def _tenant_id(gateway: ServedGateway) -> str:
    return str((await gateway.get(f"/tenants/{ARCHIVE_TENANT}"))["id"])
