"""`/admin/v1/rules` on SQLite and PostgreSQL: modes that change while serving, on every gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.storage.tables import RULE_SETTINGS
from tests.gateway.support.prompts import SUPPORT, chat, register
from tests.gateway.support.stored_gateway import Gateway, OpenGateway

RULE = "trim_end_of_system"


async def fired(gateway: Gateway, key: str | None = None) -> str:
    """Rules in the header of a chat whose system text has white space at its end."""
    answer = await chat(gateway, SUPPORT + " \n", key)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-prefixgate-cache"].partition("rules=")[2]


async def mode_of(gateway: Gateway, query: str = "") -> str:
    rules = (await gateway.admin.get(f"/rules{query}")).json()["data"]
    return next(rule["mode"] for rule in rules if rule["name"] == RULE)


async def test_mode_changes_for_the_next_request_and_back(gateway: Gateway) -> None:
    assert await fired(gateway) == RULE
    answer = await gateway.admin.put(f"/rules/{RULE}", json={"mode": "off"})
    assert answer.json() == {"tenant": "*", "route": "*", "rule": RULE, "mode": "off", "params": {}}
    assert (await fired(gateway), await mode_of(gateway)) == ("none", "off")
    await gateway.admin.put(f"/rules/{RULE}", json={"mode": "audit"})
    assert (await fired(gateway), await mode_of(gateway)) == ("none", "audit")
    assert (await gateway.admin.delete(f"/rules/{RULE}")).json()["cleared"]
    assert (await fired(gateway), await mode_of(gateway)) == (RULE, "on")
    actions = [entry["action"] for entry in (await gateway.admin.get("/audit")).json()["data"]]
    assert actions == ["rule.clear", "rule.set", "rule.set"]


async def test_what_audit_mode_assumes_is_listed_and_can_be_turned_on(gateway: Gateway) -> None:
    listed = (await gateway.admin.get("/rules")).json()["data"]
    assumed = {rule["name"]: rule["audit_params"] for rule in listed if rule["audit_params"]}
    assert assumed == {"relocate_volatile": {"kinds": ["clock", "uuid", "hex_id", "counter"]}}
    answer = await gateway.admin.put(
        "/rules/relocate_volatile", json={"mode": "on", "params": assumed["relocate_volatile"]}
    )
    assert answer.status_code == 200, answer.text


async def test_mode_holds_for_one_tenant_and_one_route(gateway: Gateway) -> None:
    mine, theirs = await gateway.make_key("acme"), await gateway.make_key("other")
    await gateway.admin.put("/rules/*", json={"mode": "off", "tenant": "acme", "route": "/v1/chat/completions"})
    assert (await fired(gateway, mine), await fired(gateway, theirs)) == ("none", RULE)
    listed = (await gateway.admin.get("/rules")).json()
    (choice,) = listed["choices"]
    assert (choice["rule"], choice["route"], choice["mode"]) == ("*", "/v1/chat/completions", "off")
    assert await mode_of(gateway, "?tenant=acme&route=/v1/chat/completions") == "off"
    assert await mode_of(gateway, "?tenant=acme") == await mode_of(gateway) == "on"


async def test_second_gateway_follows_and_a_restart_remembers(open_gateway: OpenGateway) -> None:
    async with open_gateway() as first, open_gateway() as second:
        await first.admin.put(f"/rules/{RULE}", json={"mode": "off"})
        while await mode_of(second) != "off":
            await asyncio.sleep(0.02)
        assert await fired(second) == "none"
    async with open_gateway() as again:
        assert await mode_of(again) == "off"


async def test_registered_prompt_follows_the_modes_of_its_tenant(gateway: Gateway) -> None:
    made = await register(gateway, text=SUPPORT + "\n\n")
    assert (await chat(gateway, SUPPORT + "\n\n")).headers["x-prefixgate-cache"].startswith("cached=")
    before = (await gateway.admin.get("/prompts/support")).json()["warm"]
    await gateway.admin.put(f"/rules/{RULE}", json={"mode": "off"})
    named = await chat(gateway, None, prompt={"id": made["id"]})
    written = await chat(gateway, SUPPORT + "\n\n")
    tokens = [answer.json()["usage"]["prompt_tokens"] for answer in (named, written)]
    assert tokens[0] == tokens[1]
    assert before is not None


@pytest.mark.parametrize(
    ("rule", "body", "param", "says"),
    [
        ("nope", {"mode": "on"}, "rules.nope", "rules.nope: unknown, wanted one of"),
        (RULE, {"mode": "maybe"}, "mode", "got 'maybe', wanted"),
        (RULE, {}, "mode", "missing"),
        (RULE, {"mode": "on", "params": {"x": 1}}, "params.x", "got 'x', wanted none"),
        (RULE, {"mode": "on", "tenant": "nobody"}, "tenant", "got 'nobody', wanted the id or name of a tenant"),
        (RULE, {"mode": "on", "route": "chat"}, "route", "got 'chat', wanted a path"),
        ("*", {"mode": "on", "params": {"x": 1}}, "params.x", "wanted none"),
    ],
)
async def test_bad_input_names_the_field_and_changes_nothing(
    gateway: Gateway, rule: str, body: dict[str, Any], param: str, says: str
) -> None:
    answer = await gateway.admin.put(f"/rules/{rule}", json=body)
    assert answer.status_code in (400, 404)
    assert (answer.json()["error"]["param"], says in answer.json()["error"]["message"]) == (param, True)
    async with gateway.store.database.read() as connection:
        assert (await connection.execute(RULE_SETTINGS.select())).all() == []
    assert (await gateway.admin.delete(f"/rules/{RULE}")).status_code == 404


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_modes_outlive_a_database_that_is_gone_and_writes_are_503(gateway: Gateway) -> None:
    await gateway.admin.put(f"/rules/{RULE}", json={"mode": "off"})
    Path(gateway.store.database.place).unlink()
    assert await fired(gateway) == "none"
    answer = await gateway.admin.put(f"/rules/{RULE}", json={"mode": "on"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable")
    assert await fired(gateway) == "none"


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_salt_narrows_the_cache_of_a_tenant_that_may_choose_one(gateway: Gateway, path: str) -> None:
    mine, theirs = await gateway.make_key("acme"), await gateway.make_key("other")
    choice = {"mode": "off", "tenant": "acme"}
    assert (await gateway.admin.put("/rules/overwrite_client_salt", json=choice)).status_code == 200

    async def num_cached(key: str, salt: str | None) -> int:
        said = {"prompt": SUPPORT} if path == "completions" else {"messages": [{"role": "user", "content": SUPPORT}]}
        answer = await gateway.admin.post(
            f"http://gateway/v1/{path}",
            json={"model": "tiny", **said, "cache_salt": salt},
            headers={"authorization": f"Bearer {key}"},
        )
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    salts = (None, "a", "b")
    assert [await num_cached(mine, salt) for salt in salts] == [0, 0, 0]
    assert min([await num_cached(mine, salt) for salt in salts]) > 0
    first, *again = [await num_cached(theirs, salt) for salt in salts]  # theirs is dropped
    assert (first, min(again) > 0) == (0, True)
