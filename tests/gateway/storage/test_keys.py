from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from tests.gateway.support.server import until
from tests.gateway.support.stored_gateway import Gateway, OpenGateway

MISSING = "/keys/key_000000000000000000000000"


def later(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


async def key_of(gateway: Gateway, **fields: Any) -> dict[str, Any]:
    await gateway.admin.post("/tenants", json={"name": "acme"})
    answer = await gateway.admin.post("/keys", json={"tenant": "acme", **fields})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def test_tenant_is_made_shown_and_listed(gateway: Gateway) -> None:
    made = await gateway.admin.post("/tenants", json={"name": "acme"})
    tenant = made.json()
    assert made.status_code == 201
    assert tenant["name"] == "acme"
    for name in ("acme", tenant["id"]):
        assert (await gateway.admin.get(f"/tenants/{name}")).json() == tenant
    assert [entry["name"] for entry in (await gateway.admin.get("/tenants")).json()["data"]] == ["default", "acme"]


async def test_key_is_shown_once_and_lets_its_tenant_in(gateway: Gateway) -> None:
    tenant = (await gateway.admin.post("/tenants", json={"name": "acme"})).json()
    assert (await gateway.chat()).status_code == 200  # nobody has a key yet
    made = (await gateway.admin.post("/keys", json={"tenant": "acme", "name": "ci"})).json()
    secret = made.pop("key")
    assert (await gateway.chat(secret)).status_code == 200
    assert gateway.backend.requests[-1].tenant == tenant["id"] == made["tenant"]
    for wrong in (None, secret[:-1], secret + "x", "open-sesame", "pg-", "ö"):
        assert (await gateway.chat(wrong)).status_code == 401
    shown = await gateway.admin.get(f"/keys/{made['id']}")
    listed = await gateway.admin.get("/keys?tenant=acme")
    assert shown.json() == made == listed.json()["data"][0]
    assert secret not in shown.text + listed.text + (await gateway.admin.get("/audit")).text
    assert (made["state"], made["name"], made["hint"]) == ("active", "ci", f"…{secret[-4:]}")


async def test_key_is_nowhere_in_the_database(gateway: Gateway) -> None:
    secret = (await key_of(gateway))["key"]
    async with gateway.store.database.read() as connection:
        rows = (await connection.execute(text("SELECT * FROM keys"))).all()
        rows += (await connection.execute(text("SELECT * FROM audit_log"))).all()
    assert len(rows) == 3
    assert secret not in repr(rows)


async def test_both_headers_are_read(gateway: Gateway) -> None:
    secret = (await key_of(gateway))["key"]
    for headers in ({"x-api-key": secret}, {"authorization": f"bearer {secret}"}):
        answer = await gateway.admin.get("http://gateway/v1/models", headers={"authorization": "", **headers})
        assert answer.status_code == 200, headers
    answer = await gateway.admin.get("http://gateway/v1/models", headers={"authorization": "", "x-api-key": "x"})
    assert answer.status_code == 401


@pytest.mark.parametrize("ending", ["revoke", "delete"])
async def test_revoked_key_is_refused_at_once_and_the_doors_stay_shut(gateway: Gateway, ending: str) -> None:
    made = await key_of(gateway)
    path = f"/keys/{made['id']}"
    for _ in range(2):  # the second time changes nothing
        done = await (gateway.admin.delete(path) if ending == "delete" else gateway.admin.post(f"{path}/revoke"))
        assert (done.status_code, done.json()["state"]) == (200, "revoked")
    assert (await gateway.chat(made["key"])).status_code == 401
    assert (await gateway.chat()).status_code == 401
    actions = [entry["action"] for entry in (await gateway.admin.get("/audit")).json()["data"]]
    assert actions == ["key.revoke", "key.create", "tenant.create"]


async def test_rotated_key_goes_on_for_its_grace_and_its_heir_at_once(gateway: Gateway) -> None:
    old = await key_of(gateway, name="ci", models=["tiny"], expires_at=later(1000))
    new = (await gateway.admin.post(f"/keys/{old['id']}/rotate", json={"grace_seconds": 600})).json()
    assert (new["replaces"], new["name"], new["models"]) == (old["id"], "ci", ["tiny"])
    assert new["expires_at"] == old["expires_at"]
    for key in (old, new):
        assert (await gateway.chat(key["key"])).status_code == 200
    assert (await gateway.admin.post(f"/keys/{new['id']}/rotate")).status_code == 201
    assert (await gateway.chat(new["key"])).status_code == 401
    again = await gateway.admin.post(f"/keys/{new['id']}/rotate")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "conflict")


async def test_expired_key_is_refused(gateway: Gateway) -> None:
    async def refused() -> bool:
        return (await gateway.chat(made["key"])).status_code == 401

    made = await key_of(gateway, expires_at=later(2))
    assert not await refused()
    while not await refused():
        await asyncio.sleep(0.05)
    assert (await gateway.admin.get(f"/keys/{made['id']}")).json()["state"] == "expired"
    path = f"/keys/{made['id']}/expire"
    assert (await gateway.admin.post(path, json={"expires_at": None})).json()["state"] == "active"
    assert (await gateway.chat(made["key"])).status_code == 200
    await gateway.admin.post(path, json={"expires_at": later(2)})
    while not await refused():
        await asyncio.sleep(0.05)
    await gateway.admin.delete(f"/keys/{made['id']}")
    assert (await gateway.admin.post(path, json={"expires_at": None})).status_code == 409


async def test_key_works_for_its_models_only(gateway: Gateway) -> None:
    other = (await key_of(gateway, models=["other", "third"]))["key"]
    answer = await gateway.chat(other)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (403, "model_not_allowed", "model")
    assert error["message"] == "model: got 'tiny', wanted one of those that this API key may use: other, third"
    assert (await gateway.chat(other, model="unheard-of")).status_code == 404
    headers = {"authorization": f"Bearer {other}"}
    assert (await gateway.admin.get("http://gateway/v1/models", headers=headers)).json()["data"] == []
    assert (await gateway.admin.get("http://gateway/v1/models/tiny", headers=headers)).status_code == 403
    assert (await gateway.chat(await gateway.make_key("acme", models=["tiny"]))).status_code == 200


async def test_key_of_one_gateway_works_and_stops_on_another(open_gateway: OpenGateway) -> None:
    async with open_gateway() as one, open_gateway() as other:
        assert (await other.chat()).status_code == 200
        made = await key_of(one)
        await until(other.store.ring.has_keys)
        assert (await other.chat(made["key"])).status_code == 200
        assert (await other.chat()).status_code == 401
        await one.admin.delete(f"/keys/{made['id']}")
        await until(lambda: other.store.ring.identify(made["key"]) is None)
        assert (await other.chat(made["key"])).status_code == 401


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
async def test_postgresql_tells_the_other_gateway_without_its_asking(open_gateway: OpenGateway) -> None:
    async with open_gateway(poll_seconds=600) as one, open_gateway(poll_seconds=600) as other:
        await asyncio.sleep(1)  # until it listens
        await key_of(one)
        await until(other.store.ring.has_keys)


BAD: dict[str, tuple[str, object, int, str | None, str]] = {
    # id: path, body, status, param, words
    "tenant-twice": ("/tenants", {"name": "default"}, 409, "name", "'default', wanted a name that no tenant has"),
    "tenant-nothing": ("/tenants", {}, 400, "name", "missing"),
    "tenant-null": ("/tenants", {"name": None}, 400, "name", "got null, wanted a valid string"),
    "tenant-number": ("/tenants", {"name": 5}, 400, "name", "got 5, wanted a valid string"),
    "tenant-empty": ("/tenants", {"name": ""}, 400, "name", "at least 1 character"),
    "tenant-long": ("/tenants", {"name": "x" * 101}, 400, "name", "at most 100 characters"),
    "tenant-newline": ("/tenants", {"name": "a\nb"}, 400, "name", "printable characters"),
    "tenant-nul": ("/tenants", {"name": "a\0b"}, 400, "name", "printable characters"),
    "tenant-escape": ("/tenants", {"name": "\x1b[31mred"}, 400, "name", "printable characters"),
    "tenant-right-to-left": ("/tenants", {"name": "a\u202eb"}, 400, "name", "printable characters"),
    "tenant-space": ("/tenants", {"name": " a"}, 400, "name", "no space at the ends"),
    "tenant-unknown-field": ("/tenants", {"name": "a", "id": "b"}, 400, "id", "unknown, wanted one of name"),
    "array": ("/tenants", [], 400, None, "the body is an array"),
    "not-json": ("/tenants", b"{name: a}", 400, None, "not valid JSON"),
    "not-utf8": ("/tenants", b'{"name": "\xff"}', 400, None, "not valid JSON"),
    "surrogate": ("/tenants", b'{"name": "\\ud800"}', 400, None, "not valid JSON"),
    "deep": ("/tenants", b"[" * 100_000, 400, None, "not valid JSON"),
    "key-tenant-missing": ("/keys", {}, 400, "tenant", "missing"),
    "key-tenant-unknown": ("/keys", {"tenant": "nobody"}, 404, "tenant", "'nobody', wanted the id or name"),
    "key-tenant-list": ("/keys", {"tenant": ["a"]}, 400, "tenant", "an array with 1 entry"),
    "key-past": ("/keys", {"tenant": "default", "expires_at": "2020-01-01T00:00:00Z"}, 400, "expires_at", "to come"),
    "key-past-number": ("/keys", {"tenant": "default", "expires_at": 1}, 400, "expires_at", "wanted a time to come"),
    "key-no-zone": ("/keys", {"tenant": "default", "expires_at": "2999-01-01T00:00:00"}, 400, "expires_at", "timezone"),
    "key-no-time": ("/keys", {"tenant": "default", "expires_at": "soon"}, 400, "expires_at", "'soon', wanted a valid"),
    "key-models-empty": ("/keys", {"tenant": "default", "models": []}, 400, "models", "at least 1 item"),
    "key-models-string": ("/keys", {"tenant": "default", "models": "tiny"}, 400, "models", "wanted a valid array"),
    "key-model-number": ("/keys", {"tenant": "default", "models": ["a", 5]}, 400, "models[1]", "got 5"),
    "key-own-secret": ("/keys", {"tenant": "default", "key": "mine"}, 400, "key", "unknown"),
    "rotate-nothing": (f"{MISSING}/rotate", {}, 404, "key", "wanted the id of a key"),
    "rotate-grace": (f"{MISSING}/rotate", {"grace_seconds": -1}, 400, "grace_seconds", "got -1"),
    "rotate-grace-nan": (f"{MISSING}/rotate", b'{"grace_seconds": NaN}', 400, "grace_seconds", "finite"),
    "expire-nothing": (f"{MISSING}/expire", {}, 400, "expires_at", "missing"),
    "revoke-nothing": (f"{MISSING}/revoke", {}, 404, "key", "wanted the id of a key"),
}


@pytest.mark.parametrize(("path", "body", "status", "param", "words"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_bad_body_is_refused_and_changes_nothing(
    gateway: Gateway, path: str, body: object, status: int, param: str | None, words: str
) -> None:
    kind = {"content": body} if isinstance(body, bytes) else {"json": body}
    answer = await gateway.admin.post(path, **kind)  # type: ignore[arg-type]
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["type"]) == (status, param, "invalid_request_error")
    assert words in error["message"]
    assert len(answer.content) < 500
    assert (await gateway.admin.get("/audit")).json()["data"] == []
    assert await gateway.store.database.change_counter() == 0


QUERIES: dict[str, tuple[str, str]] = {
    "/tenants?limit=0": ("limit", "greater than or equal to 1"),
    "/tenants?limit=1001": ("limit", "less than or equal to 1000"),
    "/tenants?limit=x": ("limit", "got 'x', wanted a valid integer"),
    "/tenants?page=2": ("page", "unknown, wanted one of limit, cursor"),
    "/tenants?limit=1&limit=2": ("limit", "given twice"),
    "/tenants?cursor=%00": ("cursor", "printable"),
    "/audit?cursor=abc": ("cursor", "got 'abc'"),
    "/keys?tenant=": ("tenant", "at least 1 character"),
}


@pytest.mark.parametrize("path", QUERIES)
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_bad_query_is_refused(gateway: Gateway, path: str) -> None:
    answer = await gateway.admin.get(path)
    param, words = QUERIES[path]
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert words in answer.json()["error"]["message"]


async def test_sql_in_names_is_a_name(gateway: Gateway) -> None:
    names = ["'; DROP TABLE tenants; --", '" OR 1=1', "%", "a%2Fb", "Ünïcødé ✓", "x" * 100]
    for name in names:
        assert (await gateway.admin.post("/tenants", json={"name": name})).status_code == 201, name
        assert (await gateway.admin.post("/keys", json={"tenant": name, "name": name})).status_code == 201, name
        listed = await gateway.admin.get("/keys", params={"tenant": name})
        assert [key["name"] for key in listed.json()["data"]] == [name]
    assert len((await gateway.admin.get("/tenants")).json()["data"]) == len(names) + 1
    assert (await gateway.admin.get("/keys", params={"tenant": "' OR ''='"})).status_code == 404


async def test_names_at_the_same_time_are_given_once(gateway: Gateway) -> None:
    asked = [gateway.admin.post("/tenants", json={"name": "acme"}) for _ in range(8)]
    answers: list[httpx.Response] = await asyncio.gather(*asked)
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 7


@pytest.mark.parametrize("path", ["/tenants", "/audit", "/keys"])
async def test_pages_follow_each_other_without_gap_or_overlap(gateway: Gateway, path: str) -> None:
    for number in range(5):
        await gateway.admin.post("/tenants", json={"name": f"t{number}"})
        await gateway.admin.post("/keys", json={"tenant": f"t{number}"})
    whole = (await gateway.admin.get(path)).json()["data"]
    seen, cursor = [], ""
    while cursor is not None:
        page = (await gateway.admin.get(f"{path}?limit=2{cursor and f'&cursor={cursor}'}")).json()
        assert page["has_more"] == (page["next_cursor"] is not None)
        assert len(page["data"]) == 2 or not page["has_more"]
        seen += page["data"]
        cursor = page["next_cursor"]
    assert seen == whole
    assert len(whole) >= 5


async def test_audit_says_who_what_and_when(gateway: Gateway) -> None:
    made = await gateway.admin.post("/tenants", json={"name": "acme"}, headers={"x-request-id": "mine"})
    (entry,) = (await gateway.admin.get("/audit")).json()["data"]
    assert datetime.fromisoformat(entry.pop("created_at")) > datetime.now(UTC) - timedelta(minutes=1)
    assert entry == {
        "seq": 1,
        "actor": "admin@127.0.0.1",
        "action": "tenant.create",
        "target": made.json()["id"],
        "request_id": "mine",
        "details": {"name": "acme"},
    }


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_every_route_needs_the_admin_key(gateway: Gateway) -> None:
    user_key = await gateway.make_key("acme")
    for method, path in [
        ("GET", "/config"),
        ("GET", "/tenants"),
        ("POST", "/keys"),
        ("DELETE", MISSING),
        ("GET", "/audit"),
    ]:
        for key in ("", "Bearer nonsense", f"Bearer {user_key}"):
            answer = await gateway.admin.request(method, path, headers={"authorization": key})
            assert answer.status_code == 401, (method, path)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_config_is_shown_without_secrets(open_gateway: OpenGateway) -> None:
    async with open_gateway(
        pepper="a pepper of some length", db="postgresql+psycopg://u:hush@h/x", num_blocks=77
    ) as gateway:
        answer = await gateway.admin.get("/config")
    assert answer.json()["num_blocks"] == 77
    assert answer.json()["admin_key"] == "**********"
    assert not any(secret in answer.text for secret in ("open-sesame", "a pepper", "hush"))
