"""What a browser on the dashboard's page sends."""

from __future__ import annotations

from typing import Any

import httpx
from pydantic import SecretStr

from gateway.dashboard.session import COOKIE, Sessions

ADMIN_KEY = "open-sesame"
ORIGIN = "http://gateway"
THING = "/admin/v1/thing"
SAME_ORIGIN = {"sec-fetch-site": "same-origin", "origin": ORIGIN}
OWN_PAGE = {**SAME_ORIGIN, "x-prefixgate-dashboard": "1"}
BEARER = {"authorization": f"Bearer {ADMIN_KEY}"}


async def log_in(browser: httpx.AsyncClient, key: str = ADMIN_KEY) -> httpx.Response:
    return await browser.post("/dashboard/login", json={"key": key}, headers=SAME_ORIGIN)


async def change(browser: httpx.AsyncClient, **headers: str) -> httpx.Response:
    return await browser.post(THING, headers={**OWN_PAGE, **headers})


def cookie(token: str) -> dict[str, str]:
    return {"cookie": f"{COOKIE}={token}"}


def token(admin_key: str = ADMIN_KEY, **options: Any) -> str:
    """What a gateway with this key would have given; a clock among the options says when."""
    sessions = Sessions(SecretStr(admin_key), **options)
    return sessions.token(sessions.open())


def code(answer: httpx.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.json()["error"]["code"]
