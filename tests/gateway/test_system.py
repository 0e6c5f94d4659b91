from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.routing import Route

from gateway.app import create_app
from gateway.auth import Authenticator, Identity, is_loopback
from gateway.backends.base import BackendSnapshot
from gateway.errors import AuthenticationError
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from tests.gateway.conftest import open_client
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.test_chat import PATH, chat

ADMIN = {"authorization": "Bearer open-sesame"}


async def test_ready_follows_the_backend_and_health_does_not(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    assert (await client.get("/ready")).status_code == 200
    backend.is_up = False
    answer = await client.get("/ready")
    assert (answer.status_code, answer.json()) == (503, {"status": "restarting: out of luck"})
    assert (await client.get("/health")).status_code == 200
    assert (await client.get("/v1/models")).json()["data"][0]["id"] == "tiny"


async def test_version_names_version_and_model(client: httpx.AsyncClient) -> None:
    answer = (await client.get("/version")).json()
    assert answer["model"] == "tiny"
    assert answer["version"][0].isdigit()


async def test_models_lists_the_one_and_knows_no_other(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/models/tiny")).json()["max_model_len"] == 512
    answer = await client.get("/v1/models/org/other")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("authorization", [None, "Bearer anything", "Basic x", "nonsense"])
async def test_loopback_without_keys_needs_none_and_ignores_any(
    client: httpx.AsyncClient, authorization: str | None
) -> None:
    headers = {"authorization": authorization} if authorization else {}
    assert (await client.post(PATH, json=chat(), headers=headers)).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny", PATH])
async def test_public_address_without_keys_answers_nobody(
    backend: FakeBackend, model_files: ModelFiles, path: str
) -> None:
    async with open_client(backend, model_files, host="0.0.0.0") as client:
        answer = await client.request("POST" if path == PATH else "GET", path, headers=ADMIN)
        assert (await client.get("/health")).status_code == 200
    assert answer.status_code == 401
    assert "--host 127.0.0.1" in answer.json()["error"]["message"]
    assert answer.headers["www-authenticate"] == "Bearer"


class OneKey:
    def has_keys(self) -> bool:
        return True

    def identify(self, key: str) -> Identity | None:
        return Identity(tenant="acme") if key == "k" else None


async def test_key_decides_the_tenant_and_the_namespace(backend: FakeBackend, model_files: ModelFiles) -> None:
    app = create_app(Settings(host="0.0.0.0"), backend, model_files, keys=OneKey())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        assert (await client.post(PATH, json=chat(), headers={"authorization": "bearer k"})).status_code == 200
        assert (await client.post(PATH, json=chat(), headers={"authorization": "Bearer no"})).status_code == 401
        assert (await client.post(PATH, json=chat())).status_code == 401
    async with open_client(backend, model_files) as client:
        await client.post(PATH, json=chat(cache_salt="acme", user="acme"))
    acme, nobody = backend.requests
    assert (acme.tenant, nobody.tenant) == ("acme", "default")
    assert acme.token_ids.tolist() == nobody.token_ids.tolist()
    assert acme.scopes != nobody.scopes
    assert acme.block_hashes != nobody.block_hashes


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *((host, True) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", "")),
    ],
)
def test_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


async def test_admin_is_off_without_a_key(client: httpx.AsyncClient) -> None:
    answer = await client.get("/admin/v1/cache", headers=ADMIN)
    assert answer.status_code == 403
    assert "PREFIXGATE_ADMIN_KEY" in answer.json()["error"]["message"]


async def test_admin_cache_shows_one_snapshot(
    backend: FakeBackend, model_files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFIXGATE_ADMIN_KEY", "open-sesame")
    async with open_client(backend, model_files) as client:
        for wrong in ({}, {"authorization": "Bearer open-sesam"}, {"authorization": "open-sesame"}):
            assert (await client.get("/admin/v1/cache", headers=wrong)).status_code == 401
        await client.post(PATH, json=chat())
        cache = (await client.get("/admin/v1/cache", headers=ADMIN)).json()
        assert cache["total_blocks"] == cache["free_blocks"] + cache["cached_blocks"] + cache["active_blocks"]
        assert cache["active_blocks"] == cache["active_private_blocks"] + cache["active_shared_blocks"]
        assert cache["cached_blocks"] > 0
        assert {"shared_blocks", "pinned_blocks", "shared_blocks_max", "pinned_blocks_max"} <= cache.keys()
        assert (cache["num_running"], cache["num_waiting"], cache["counters"]) == (0, 0, {"evicted_blocks": 3})
        assert cache["running"] == cache["waiting"] == {"short": 0, "long": 0}
        backend.is_up = False
        answer = await client.get("/admin/v1/cache", headers=ADMIN)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "3")


async def test_engine_that_hangs_holds_up_neither_operator_nor_scrape(
    model_files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFIXGATE_ADMIN_KEY", "open-sesame")
    async with open_client(HangingBackend(), model_files) as client, asyncio.timeout(30):
        cache, metrics = await asyncio.gather(client.get("/admin/v1/cache", headers=ADMIN), client.get("/metrics"))
    assert (cache.status_code, cache.headers["retry-after"]) == (503, "5")
    assert cache.json()["error"]["code"] == "engine_unavailable"
    assert metrics.status_code == 200
    assert "prefixgate_blocks" not in metrics.text


class HangingBackend(FakeBackend):
    async def snapshot(self) -> BackendSnapshot:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


def test_admin_key_of_no_ascii_is_wrong_and_no_crash() -> None:
    authenticator = Authenticator(OneKey(), host="127.0.0.1", admin_key=Settings(admin_key="open-sesame").admin_key)
    with pytest.raises(AuthenticationError):
        authenticator.check_admin("Bearer ö")


async def test_lifespan_starts_and_stops_the_backend(backend: FakeBackend, model_files: ModelFiles) -> None:
    app = create_app(Settings(), backend, model_files)
    async with app.router.lifespan_context(app):
        assert (backend.num_started, backend.num_stopped) == (1, 0)
    assert (backend.num_started, backend.num_stopped) == (1, 1)


def test_hot_paths_are_plain_routes(backend: FakeBackend, model_files: ModelFiles) -> None:
    app = create_app(Settings(), backend, model_files)
    plain = {route.path for route in app.routes if type(route) is Route}
    assert {PATH, "/v1/models", "/metrics", "/ready"} <= plain
