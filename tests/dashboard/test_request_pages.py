"""The list of requests, one request and the tenants: their numbers are the API's, and nothing that clients sent is markup."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Locator, Page, expect

from tests.dashboard.support.browser import NARROW, Faults, OpenPage, axe, login
from tests.dashboard.support.served import ServedGateway
from tests.dashboard.support.traffic import LIMITED_TENANT, SCRIPT, SCRIPT_TENANT, TENANTS, Traffic


async def _figures(place: Locator) -> dict[str, str]:
    """The exact values of the numbers that stand there, by their names in the API's answers."""
    read = "elements => elements.map(element => [element.dataset.figure, element.dataset.value])"
    return dict(await place.locator("[data-figure]").evaluate_all(read))


def _equal(shown: str, wanted: Any) -> bool:
    return shown == "" if wanted is None else float(shown) == float(wanted)


def _differences(shown: dict[str, str], answer: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """Figures that are not what the answer says under their names."""
    found = {}
    for name, value in shown.items():
        wanted: Any = answer
        for key in name.split("."):
            wanted = wanted[key]
        if not _equal(value, wanted):
            found[name] = (value, wanted)
    return found


async def _scripted_request(gateway: ServedGateway) -> dict[str, Any]:
    """One with script in its tenant's name and in its text, and something from the cache."""
    for row in (await gateway.get("/requests", tenant=SCRIPT_TENANT, status=200, min_cached_tokens=1))["data"]:
        request: dict[str, Any] = await gateway.get(f"/requests/{row['completion_id']}")
        if SCRIPT in request["request_body"]:
            return request
    raise AssertionError("the traffic has no script in it")


async def test_request_is_opened_from_the_list_and_shows_the_apis_numbers(
    page: Page, gateway: ServedGateway, traffic: Traffic
) -> None:
    request = await _scripted_request(gateway)
    path = f"/requests/{request['completion_id']}"
    await login(page, route=f"/requests?tenant={request['tenant']}&status=200")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=request["completion_id"]))
    await expect(row).to_contain_text(SCRIPT_TENANT)
    in_list = await _figures(row)
    assert set(in_list) == {"num_prompt_tokens", "num_cached_tokens", "first_token_seconds", "total_seconds"}
    assert not _differences(in_list, request)

    await row.get_by_role("link").click()
    log = page.get_by_role("region", name="What came, and how it ended")
    await expect(log).to_contain_text("Decode")
    shown = await _figures(log)
    assert {"queue_seconds", "prepare_seconds", "num_output_tokens", "total_seconds"} <= set(shown)
    assert not _differences(shown, await gateway.get(path))

    why = page.get_by_role("region", name="Why not more of it was cached")
    explained = await gateway.get(f"{path}/explain")
    await expect(why).to_contain_text(explained["sentence"])
    assert not _differences(await _figures(why), explained)

    blocks = page.get_by_role("region", name="Its blocks")
    table = await gateway.get(f"{path}/blocks")
    await expect(blocks.get_by_role("option")).to_have_count(len(table["blocks"]))
    assert not _differences(await _figures(blocks), table)
    num_hits = sum(block["reason"] == "hit" for block in table["blocks"])
    assert await blocks.get_by_role("option", name="Reused").count() == num_hits > 0
    await blocks.get_by_role("listbox").press("End")
    await expect(blocks).to_contain_text(f"Block {len(table['blocks']) - 1} ")

    await log.get_by_text("Body as it came").click()
    await expect(log.locator("pre")).to_contain_text(SCRIPT)
    await axe(page)
    assert await page.evaluate("window.hacked") is None


async def test_list_keeps_its_filters_in_the_address_and_counts_what_comes_while_it_is_paused(
    page: Page, traffic: Traffic
) -> None:
    await login(page, route="/requests?status=400")
    rows = page.get_by_role("region", name="Requests, newest first").get_by_role("row")
    await expect(rows.nth(1)).to_contain_text("400 refused")
    await expect(rows.nth(1)).to_contain_text(TENANTS[0])
    await page.get_by_label("Endpoint").select_option("/v1/messages")
    await expect(page.get_by_text("No request fits these filters")).to_be_visible()
    assert page.url.endswith("#/requests?endpoint=%2Fv1%2Fmessages&status=400")

    await page.get_by_role("button", name="Reset", exact=True).click()
    await expect(page.get_by_label("Status")).to_have_value("")
    newest = rows.nth(1).get_by_role("link")
    before = await newest.inner_text()
    await traffic.desk(1)
    await expect(newest).not_to_have_text(before)
    await page.get_by_role("button", name="Pause").click()
    before = await newest.inner_text()
    await traffic.desk(1)
    more = page.get_by_role("button", name="2 newer: show")
    await expect(more).to_be_visible()
    await expect(newest).to_have_text(before)
    await more.click()
    await expect(newest).not_to_have_text(before)


async def test_request_that_is_in_no_log_says_so(page: Page, gateway: ServedGateway, faults: Faults) -> None:
    faults.allow("404")
    await login(page, route="/requests")
    await page.get_by_label("Find by id").fill("nobody/../%20<b>")
    await page.get_by_label("Find by id").press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Request nobody/../%20<b>")
    for words in ("Not in the log", "No explanation any more", "No block table any more", "Nothing to compare"):
        await expect(page.get_by_text(words)).to_be_visible()


async def test_tenants_show_the_apis_numbers(open_page: OpenPage, gateway: ServedGateway, traffic: Traffic) -> None:
    async with open_page(width=NARROW) as page:
        await login(page, route="/tenants")
        rows = page.get_by_role("region", name="Usage by tenant").get_by_role("row")
        async with gateway.admin() as client:
            usage = {row["name"]: row for row in (await client.get("/usage/tenants")).json()["data"]}
        for name in (SCRIPT_TENANT, LIMITED_TENANT):
            row = rows.filter(has=page.get_by_role("link", name=name, exact=True))
            shown = await _figures(row)
            assert {"requests", "prompt_tokens", "hit_rate", "cache_share"} <= set(shown)
            assert not _differences(shown, usage[name])
        await expect(rows.filter(has_text=LIMITED_TENANT)).to_contain_text("of 1 requests a minute")
        await axe(page)
        assert await page.evaluate("document.documentElement.scrollWidth") <= NARROW
        await page.get_by_role("link", name=TENANTS[1]).click()
        await expect(page.get_by_label("Tenant")).to_have_value(usage[TENANTS[1]]["tenant"])
        assert await page.evaluate("window.hacked") is None
