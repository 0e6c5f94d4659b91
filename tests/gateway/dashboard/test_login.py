"""Logging in and out, and what the session's cookie is good for."""

from __future__ import annotations

import logging
import time

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from gateway.dashboard.guesses import Guesses
from gateway.dashboard.session import SESSION_SECONDS, Sessions
from gateway.errors import RateLimitError
from tests.gateway.dashboard.support import (
    ADMIN_KEY,
    BEARER,
    OWN_PAGE,
    SAME_ORIGIN,
    THING,
    change,
    code,
    cookie,
    log_in,
    token,
)


async def test_right_key_opens_the_admin_api(browser: httpx.AsyncClient) -> None:
    assert code(await change(browser)) == (401, "invalid_api_key")
    answer = await log_in(browser)
    assert (answer.status_code, answer.content) == (204, b"")
    name, *attributes = answer.headers["set-cookie"].split("; ")
    assert name.startswith("prefixgate_session=")
    assert set(attributes) == {"HttpOnly", "SameSite=strict", "Path=/", f"Max-Age={SESSION_SECONDS}"}
    assert (await change(browser)).json() == "dashboard"
    told = (await browser.get("/dashboard/session")).json()
    assert (told["expires_at"][-1], told["enabled"]) == ("Z", True)


async def test_wrong_key_is_refused_and_logged_without_the_key(
    browser: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "gateway"):
        answer = await log_in(browser, "close-sesame")
        assert code(answer) == (401, "invalid_api_key")
        assert answer.json()["error"]["message"].startswith("key: ")
        assert "set-cookie" not in answer.headers
        await log_in(browser)
        await browser.post("/dashboard/logout")
    assert [(line.levelname, line.getMessage()) for line in caplog.records if line.name.startswith("gateway")] == [
        ("WARNING", "dashboard login with a wrong key from 127.0.0.1"),
        ("INFO", "dashboard login from 127.0.0.1"),
        ("INFO", "dashboard logout from 127.0.0.1"),
    ]
    assert "sesame" not in caplog.text


@pytest.mark.parametrize("body", ["{}", "[]", '{"key": 5}', '{"key": "x", "user": "y"}', "key=x", '{"key": "\\ud800"}'])
async def test_body_that_is_no_key_is_refused(browser: httpx.AsyncClient, body: str) -> None:
    assert (await browser.post("/dashboard/login", content=body)).status_code == 400


async def test_cookie_is_for_encrypted_connections_where_there_is_one(browser: httpx.AsyncClient) -> None:
    answer = await browser.post("https://gateway/dashboard/login", json={"key": ADMIN_KEY})
    assert "Secure" in answer.headers["set-cookie"].split("; ")
    assert (await browser.get("https://gateway/dashboard/session")).json()["secure"] is True


@pytest.mark.parametrize(
    ("host", "is_secure"),
    [("127.0.0.1:8000", True), ("localhost", True), ("[::1]:8000", True), ("10.0.0.7:8000", False)],
)
async def test_session_tells_whether_others_could_read_along(
    browser: httpx.AsyncClient, host: str, is_secure: bool
) -> None:
    answer = await browser.get("/dashboard/session", headers={"host": host, **cookie(token())})
    assert answer.json()["secure"] is is_secure


REFUSED = {
    "over": token(clock=lambda: time.time() - SESSION_SECONDS - 1),
    "of-another-admin-key": token("close-sesame"),
    "truncated": token()[:-1],
    "without-signature": token().rpartition(".")[0],
    "with-a-later-end": f"9{token()}",
    "with-another-nonce": token().replace(".", ".0", 1),
    "empty": "",
    "dots": "..",
    "not-ascii": "Ã.1.x",
}


@pytest.mark.parametrize("wrong", REFUSED.values(), ids=REFUSED)
async def test_wrong_cookie_is_refused(browser: httpx.AsyncClient, wrong: str) -> None:
    headers = {"cookie": f"prefixgate_session={wrong}".encode("latin-1")}
    assert code(await browser.get(THING, headers=headers)) == (401, "invalid_api_key")  # type: ignore[arg-type]
    assert (await browser.get("/dashboard/session", headers=headers)).json()["expires_at"] is None  # type: ignore[arg-type]


@settings(max_examples=25)
@given(st.data())
def test_no_other_token_is_as_good(data: st.DataObject) -> None:
    sessions = Sessions(SecretStr(ADMIN_KEY))
    session = sessions.open()
    good = sessions.token(session)
    assert sessions.read(good) == session
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, len(good)))
    other = good[:start] + data.draw(st.text(max_size=9)) + good[end:]
    assert (sessions.read(other) is None) == (other != good)


async def test_session_is_good_until_its_end(browser: httpx.AsyncClient) -> None:
    late = token(clock=lambda: time.time() - SESSION_SECONDS + 60)
    assert (await change(browser, **cookie(late))).status_code == 200


async def test_logout_ends_this_session_and_no_other(browser: httpx.AsyncClient) -> None:
    first = (await log_in(browser)).headers["set-cookie"].partition(";")[0]
    await log_in(browser)
    assert (await browser.post("/dashboard/logout", headers={**OWN_PAGE, "cookie": first})).status_code == 204
    browser.cookies.clear()
    second = (await log_in(browser)).headers["set-cookie"].partition(";")[0]
    assert code(await change(browser, cookie=first)) == (401, "invalid_api_key")
    assert (await change(browser, cookie=second)).status_code == 200
    answer = await browser.post("/dashboard/logout", headers=SAME_ORIGIN)
    assert (answer.status_code, dict(browser.cookies)) == (204, {})
    assert code(await change(browser, cookie=second)) == (401, "invalid_api_key")
    assert (await browser.post("/dashboard/logout")).status_code == 204


def test_what_was_revoked_is_forgotten_when_it_is_over_anyway() -> None:
    now = [0.0]
    sessions = Sessions(SecretStr(ADMIN_KEY), clock=lambda: now[0])
    early = sessions.open()
    sessions.revoke(early)
    now[0] = SESSION_SECONDS - 1.0
    late = sessions.open()
    sessions.revoke(late)
    assert [sessions.read(sessions.token(one)) for one in (early, late)] == [None, None]
    now[0] = SESSION_SECONDS + 1.0
    assert [sessions.read(sessions.token(one)) for one in (early, late)] == [None, None]


async def test_guesses_are_slowed_down_and_the_bearer_is_not(browser: httpx.AsyncClient) -> None:
    for number in range(10):
        assert code(await log_in(browser, f"guess {number}")) == (401, "invalid_api_key")
    for key in ("one more", ADMIN_KEY):
        answer = await log_in(browser, key)
        assert code(answer) == (429, "rate_limit_exceeded")
        assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert (await browser.post(THING, headers=BEARER)).json() == "admin"


def test_guesses_go_on_when_the_first_is_a_minute_old() -> None:
    now = [0.0]
    guesses = Guesses(clock=lambda: now[0])
    for _ in range(10):
        guesses.check()
        guesses.note_wrong()
        now[0] += 1.0
    with pytest.raises(RateLimitError) as caught:
        guesses.check()
    assert caught.value.retry_after_seconds == 50
    now[0] = 60.0
    guesses.check()
    guesses.note_wrong()
    with pytest.raises(RateLimitError):
        guesses.check()


async def test_bearer_decides_where_a_cookie_comes_too(browser: httpx.AsyncClient) -> None:
    await log_in(browser)
    assert code(await change(browser, authorization="Bearer close-sesame")) == (401, "invalid_api_key")
    assert (await change(browser, **BEARER)).json() == "admin"
    elsewhere = {"origin": "http://evil.example", "sec-fetch-site": "cross-site", **cookie("forged")}
    assert (await browser.post(THING, headers={**BEARER, **elsewhere})).json() == "admin"
