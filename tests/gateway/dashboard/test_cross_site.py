"""What another site's page can make a browser send, its user being logged in."""

from __future__ import annotations

import httpx
import pytest

from tests.gateway.dashboard.support import ADMIN_KEY, BEARER, ORIGIN, THING, code, cookie, log_in, token

MARK = {"x-prefixgate-dashboard": "1"}
FOREIGN = {
    # what the browser says of the page that asks; a modern one says Sec-Fetch-Site, where the address is trustworthy
    "other-site": {"sec-fetch-site": "cross-site", "origin": "https://evil.example"},
    "other-port": {"sec-fetch-site": "same-site", "origin": "http://gateway:9000"},
    "old-browser": {"origin": "https://evil.example"},
    "other-scheme": {"origin": "https://gateway"},
    "longer-name": {"origin": "http://gateway.evil.example"},
    "null": {"origin": "null"},
    "null-said-twice": {"sec-fetch-site": "cross-site", "origin": "null"},
    "origin-is-a-lie": {"sec-fetch-site": "cross-site", "origin": ORIGIN},
}
OWN = {"modern": {"sec-fetch-site": "same-origin", "origin": ORIGIN}, "old-browser": {"origin": ORIGIN}}


@pytest.mark.parametrize("headers", FOREIGN.values(), ids=FOREIGN)
async def test_change_for_another_page_is_refused(browser: httpx.AsyncClient, headers: dict[str, str]) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        answer = await browser.request(method, THING, headers={**headers, **MARK, **cookie(token())})
        assert code(answer) == (403, "cross_site")


@pytest.mark.parametrize("headers", OWN.values(), ids=OWN)
@pytest.mark.parametrize("mark", [{}, {"x-prefixgate-dashboard": "0"}], ids=["none", "0"])
async def test_change_without_the_pages_mark_is_refused(
    browser: httpx.AsyncClient, headers: dict[str, str], mark: dict[str, str]
) -> None:
    sent = {**headers, **cookie(token())}
    assert code(await browser.post(THING, headers={**sent, **mark})) == (403, "cross_site")
    assert (await browser.post(THING, headers={**sent, **MARK})).json() == "dashboard"


async def test_change_from_nowhere_is_refused(browser: httpx.AsyncClient) -> None:
    for headers in ({}, {"sec-fetch-site": "none"}):
        answer = await browser.post(THING, headers={**headers, **MARK, **cookie(token())})
        assert code(answer) == (403, "cross_site")


async def test_form_of_another_site_is_refused(browser: httpx.AsyncClient) -> None:
    """A form may send any text; it can add no header."""
    headers = {"content-type": "text/plain", "origin": "https://evil.example", **cookie(token())}
    body = '{"key": "open-sesame", "x": "="}'
    for path in (THING, "/dashboard/login", "/dashboard/logout"):
        assert code(await browser.post(path, content=body, headers=headers)) == (403, "cross_site")


@pytest.mark.parametrize("headers", FOREIGN.values(), ids=FOREIGN)
async def test_another_page_can_log_nobody_in_or_out(browser: httpx.AsyncClient, headers: dict[str, str]) -> None:
    answer = await browser.post("/dashboard/login", json={"key": ADMIN_KEY}, headers=headers)
    assert code(answer) == (403, "cross_site")
    await log_in(browser)
    assert code(await browser.post("/dashboard/logout", headers=headers)) == (403, "cross_site")
    assert (await browser.get("/dashboard/session")).json()["expires_at"] is not None


async def test_another_page_cannot_use_up_the_guesses(browser: httpx.AsyncClient) -> None:
    for _ in range(11):
        await browser.post("/dashboard/login", json={"key": "wrong"}, headers=FOREIGN["other-site"])
    assert (await log_in(browser)).status_code == 204


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
async def test_reading_is_for_our_page_and_the_address_bar(browser: httpx.AsyncClient, site: str, status: int) -> None:
    answer = await browser.get(THING, headers={"sec-fetch-site": site, **cookie(token())})
    assert answer.status_code == status


async def test_programs_are_not_asked_where_they_come_from(browser: httpx.AsyncClient) -> None:
    assert (await browser.get(THING, headers=cookie(token()))).json() == "dashboard"
    assert (await browser.post(THING, headers=BEARER)).json() == "admin"
    assert (await browser.post("/dashboard/login", json={"key": ADMIN_KEY})).status_code == 204


async def test_behind_a_proxy_the_address_is_what_the_proxy_passes_on(browser: httpx.AsyncClient) -> None:
    headers = {"origin": "https://gate.example", "host": "gate.example", **MARK, **cookie(token())}
    assert (await browser.post(f"https://inner{THING}", headers=headers)).status_code == 200
    assert code(await browser.post(f"http://inner{THING}", headers=headers)) == (403, "cross_site")
