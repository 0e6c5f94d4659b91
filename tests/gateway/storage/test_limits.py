"""Limits of tenants and keys in the database, on one gateway and on two."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.storage import migrate
from tests.gateway.support.server import until
from tests.gateway.support.stored_gateway import Gateway, OpenGateway


async def limit(gateway: Gateway, path: str, **limits: int | None) -> dict[str, Any]:
    answer = await gateway.admin.patch(path, json={"limits": limits})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def made_key(gateway: Gateway) -> tuple[str, str]:
    """A key of acme, and its path."""
    secret = await gateway.make_key("acme")
    (entry,) = (await gateway.admin.get("/keys?tenant=acme")).json()["data"]
    return secret, f"/keys/{entry['id']}"


async def test_limits_are_in_force_at_once_and_shown(gateway: Gateway) -> None:
    key, path = await made_key(gateway)
    assert (await gateway.admin.get("/tenants/acme")).json()["limits"] == {}
    changed = await limit(gateway, "/tenants/acme", requests_per_minute=3, concurrency=2)
    assert changed["limits"] == {"requests_per_minute": 3, "concurrency": 2}
    assert changed == (await gateway.admin.get("/tenants/acme")).json()
    changed = await limit(gateway, path, requests_per_day=2)
    assert changed == (await gateway.admin.get(path)).json()
    answers = [await gateway.chat(key) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert "this key may use 2 requests a day" in answers[2].json()["error"]["message"]
    (row,) = (await gateway.admin.get("/requests?error=rate_limit_exceeded")).json()["data"]
    assert (row["status"], row["endpoint"]) == (429, "/v1/chat/completions")
    assert (await gateway.chat(await gateway.make_key("acme"))).status_code == 200
    assert (await gateway.chat(await gateway.make_key("acme"))).status_code == 429


async def test_fields_that_are_not_named_stay_and_null_is_none(open_gateway: OpenGateway) -> None:
    async with open_gateway(limit_requests_per_minute=1) as gateway:
        assert [(await gateway.chat()).status_code for _ in range(2)] == [200, 429]
        await limit(gateway, "/tenants/default", tokens_per_day=500)
        assert (await gateway.chat()).status_code == 429
        changed = await limit(gateway, "/tenants/default", requests_per_minute=None)
        assert changed["limits"] == {"tokens_per_day": 500, "requests_per_minute": None}
        answer = await gateway.chat(max_tokens=5)
        assert "x-ratelimit-limit-requests" not in answer.headers
        assert answer.headers["x-ratelimit-limit-tokens"] == "500"
        cleared = await gateway.admin.patch("/tenants/default", json={"limits": None})
        assert cleared.json()["limits"] == {}
        assert (await gateway.chat()).status_code == 429


async def test_rotated_key_leaves_its_limits_to_its_heir(gateway: Gateway) -> None:
    _, path = await made_key(gateway)
    await limit(gateway, path, requests_per_minute=1)
    heir = (await gateway.admin.post(f"{path}/rotate")).json()
    assert heir["limits"] == {"requests_per_minute": 1}
    assert [(await gateway.chat(heir["key"])).status_code for _ in range(2)] == [200, 429]


async def test_limit_of_one_gateway_is_in_force_on_another(open_gateway: OpenGateway) -> None:
    async with open_gateway() as one, open_gateway() as other:
        key, path = await made_key(one)
        await until(other.store.ring.has_keys)
        assert "x-ratelimit-limit-requests" not in (await other.chat(key)).headers
        counter = other.store.ring._counter
        await limit(one, path, requests_per_minute=5)
        await until(lambda: other.store.ring._counter > counter)
        await other.store.refresh()
        assert (await other.chat(key)).headers["x-ratelimit-remaining-requests"] == "4"
        assert (await one.chat(key)).headers["x-ratelimit-remaining-requests"] == "4"  # each counts for itself


async def test_tables_with_tenants_and_keys_go_back_a_revision_and_forth(gateway: Gateway) -> None:
    _, path = await made_key(gateway)
    await limit(gateway, "/tenants/acme", concurrency=4)
    database = gateway.store.database
    await migrate.downgrade(database, "0002")
    await migrate.upgrade(database)
    assert await migrate.differences(database) == []
    assert (await gateway.admin.get("/tenants/acme")).json()["limits"] == {}
    assert (await gateway.admin.get(path)).json()["state"] == "active"


async def test_change_is_in_the_audit_log(gateway: Gateway) -> None:
    _, path = await made_key(gateway)
    await limit(gateway, "/tenants/acme", concurrency=4)
    await limit(gateway, path, concurrency=None)
    key, tenant, *_ = (await gateway.admin.get("/audit")).json()["data"]
    assert (tenant["action"], tenant["details"]) == ("tenant.limit", {"limits": {"concurrency": 4}})
    assert (key["action"], key["details"]) == ("key.limit", {"limits": {"concurrency": None}})
    assert path.endswith(key["target"])


BAD: dict[str, tuple[str, object, int, str, str]] = {
    # id: path, body, status, param, words
    "nothing": ("/tenants/default", {}, 400, "limits", "missing"),
    "not-an-object": ("/tenants/default", {"limits": 5}, 400, "limits", "got 5"),
    "other-field": ("/tenants/default", {"limits": {}, "name": "x"}, 400, "name", "unknown, wanted one of limits"),
    "other-limit": ("/tenants/default", {"limits": {"per_hour": 1}}, 400, "limits.per_hour", "unknown"),
    "zero": ("/tenants/default", {"limits": {"concurrency": 0}}, 400, "limits.concurrency", "got 0, wanted greater"),
    "text": ("/tenants/default", {"limits": {"tokens_per_day": "5"}}, 400, "limits.tokens_per_day", "got '5'"),
    "fraction": ("/tenants/default", {"limits": {"tokens_per_day": 5.5}}, 400, "limits.tokens_per_day", "got 5.5"),
    "bool": ("/tenants/default", {"limits": {"concurrency": True}}, 400, "limits.concurrency", "got true"),
    "huge": ("/tenants/default", {"limits": {"concurrency": 10**16}}, 400, "limits.concurrency", "less than or equal"),
    "no-tenant": ("/tenants/nobody", {"limits": None}, 404, "tenant", "'nobody', wanted the id or name"),
    "no-key": ("/keys/key_0", {"limits": None}, 404, "key", "wanted the id of a key"),
}


@pytest.mark.parametrize(("path", "body", "status", "param", "words"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_bad_limits_are_refused_and_change_nothing(
    gateway: Gateway, path: str, body: object, status: int, param: str, words: str
) -> None:
    answer = await gateway.admin.patch(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param)
    assert words in error["message"]
    assert (await gateway.admin.get("/audit")).json()["data"] == []
