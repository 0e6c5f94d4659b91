"""Both kinds of gateway have the dashboard, and let it use their admin API."""

from __future__ import annotations

import httpx
import pytest

from gateway.app import create_app
from gateway.auth import Authenticator, NoKeys
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from gateway.upstream.app import create_upstream_app, pool_of
from tests.gateway.conftest import open_client
from tests.gateway.dashboard.support import ADMIN_KEY, ORIGIN, OWN_PAGE, code, cookie, log_in, token
from tests.gateway.support.fake_backend import FakeBackend

PATH, BODY = "/admin/v1/normalize", {"body": {"messages": [{"role": "user", "content": "hi"}]}}


@pytest.mark.parametrize("has_engine", [True, False], ids=["engine", "upstream"])
async def test_login_opens_the_admin_api(backend: FakeBackend, model_files: ModelFiles, has_engine: bool) -> None:
    settings = Settings(admin_key=ADMIN_KEY, upstream=() if has_engine else ["http://127.0.0.1:1"])  # type: ignore[arg-type]
    app = create_app(settings, backend, model_files) if has_engine else create_upstream_app(settings, pool_of(settings))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ORIGIN) as browser:
        assert (await browser.get("/dashboard/")).status_code == 200
        assert code(await browser.post(PATH, json=BODY, headers=OWN_PAGE)) == (401, "invalid_api_key")
        assert (await log_in(browser)).status_code == 204
        assert code(await browser.post(PATH, json=BODY)) == (403, "cross_site")
        answer = await browser.post(PATH, json=BODY, headers=OWN_PAGE)
        assert answer.status_code == 200, answer.text


async def test_without_an_admin_key_nobody_gets_in(backend: FakeBackend, model_files: ModelFiles) -> None:
    async with open_client(backend, model_files) as browser:
        assert (await browser.get("/dashboard/")).status_code == 200
        for key in ("", ADMIN_KEY):
            assert code(await log_in(browser, key)) == (403, "admin_disabled")
        told = (await browser.get("/dashboard/session")).json()
        assert (told["enabled"], told["expires_at"]) == (False, None)
        for forged in (token(), token("")):
            answer = await browser.post(PATH, json=BODY, headers={**OWN_PAGE, **cookie(forged)})
            assert code(answer) == (403, "admin_disabled")


def test_no_key_is_the_operators_where_there_is_none() -> None:
    assert not Authenticator(NoKeys(), host="127.0.0.1", admin_key=None).is_admin_key("")
