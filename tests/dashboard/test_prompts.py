"""Registered prompts from the page: the list tells what the API tells, and whatever an operator does there is done."""

from __future__ import annotations

import re

from playwright.async_api import Page, expect

from tests.dashboard.support.browser import NARROW, Faults, OpenPage, axe, login
from tests.dashboard.support.served import ServedGateway
from tests.dashboard.support.traffic import PROMPT, SCRIPT, TENANTS, Traffic

NAME = "<b>desk of clocks"
TEXT = f"You mend clocks. {SCRIPT} Be brief, be kind, and never promise that a clock will be right again."


async def press(page: Page, name: str) -> None:
    await page.get_by_role("button", name=name, exact=True).click()


async def answer(page: Page, name: str) -> None:
    """Press a button of the dialog, which then goes."""
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name=name, exact=True).click()
    await expect(dialog).to_have_count(0)


async def test_list_tells_what_the_api_tells(page: Page, gateway: ServedGateway, traffic: Traffic) -> None:
    await login(page)
    await page.get_by_role("link", name="Prompts").click()
    row = page.get_by_role("row").filter(has_text=PROMPT)
    await expect(row).to_contain_text("pinned")
    (told,) = [entry for entry in (await gateway.get("/usage/prompts"))["data"] if entry["name"] == PROMPT]
    assert told["num_saved_tokens"] > 0
    assert told["num_drifted_requests"] > 0
    for name in ("num_requests", "num_hits", "num_saved_tokens", "num_drifted_requests"):
        await expect(row.locator(f"[data-figure={name}]")).to_have_attribute("data-value", str(told[name]))
    await expect(row.locator("[data-figure='active.num_tokens']")).to_have_attribute(
        "data-value", str(told["active"]["num_tokens"])
    )


async def test_operator_registers_changes_and_retires_a_prompt(
    page: Page, gateway: ServedGateway, traffic: Traffic, faults: Faults
) -> None:
    await login(page)
    await page.get_by_role("link", name="Prompts").click()
    await press(page, "Register a prompt")
    await page.get_by_label("Name", exact=True).fill("a/b")
    await page.get_by_label("For").select_option(label=TENANTS[2])
    await page.get_by_label("System prompt").fill(TEXT)
    await axe(page)
    await press(page, "Register")
    faults.allow("400 .Bad Request.")
    await expect(page.get_by_role("dialog")).to_contain_text("without /")
    await page.get_by_label("Name", exact=True).fill(NAME)
    await answer(page, "Register")
    await page.get_by_role("link", name=NAME).click()
    await expect(page.get_by_role("heading", name=NAME)).to_be_visible()
    await expect(page.get_by_role("heading", name="system")).to_be_visible()
    await axe(page)
    await press(page, "New version")
    await page.get_by_label("System prompt").fill(TEXT + " Wind them up.")
    await answer(page, "Add")
    await expect(page.locator(".facts", has_text="Version in force")).to_contain_text(re.compile("in force\\s*2"))
    await press(page, "Compare")
    await expect(page.locator("dialog .added", has_text="Wind them up.")).to_be_visible()
    await answer(page, "Close")
    await press(page, "Keep…")
    await page.get_by_label("Pin it").check()
    await page.get_by_label("Priority").fill("7")
    await answer(page, "Keep it so")
    await expect(page.locator(".badge", has_text="pinned")).to_be_visible()
    await press(page, "Put to use")
    await answer(page, "Put to use")
    told = await gateway.get(f"/prompts/{NAME}")
    first, second = told["versions"]
    (tenant,) = [entry for entry in (await gateway.get("/tenants"))["data"] if entry["name"] == TENANTS[2]]
    assert (told["active_version"], told["tenant"]) == (1, tenant["id"])
    assert (second["retention"]["pin"], second["retention"]["priority"], first["retention"]["pin"]) == (True, 7, False)
    await press(page, "Retire")
    await answer(page, "Cancel")
    assert (await gateway.get(f"/prompts/{NAME}"))["retired_at"] is None
    await press(page, "Retire")
    await answer(page, "Retire")
    await expect(page.locator(".badge", has_text="retired")).to_be_visible()
    assert (await gateway.get(f"/prompts/{NAME}"))["retired_at"]
    assert not await page.evaluate("window.hacked")


async def test_one_prompt_fits_a_phone_in_the_dark(
    open_page: OpenPage, gateway: ServedGateway, traffic: Traffic
) -> None:
    made = await gateway.get(f"/prompts/{PROMPT}")
    async with open_page(width=NARROW, dark=True) as page:
        await login(page)
        await page.goto(f"/dashboard/#/prompts/{made['id']}")
        await expect(page.get_by_role("cell", name="no: it misses")).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth") <= NARROW
        await axe(page)
