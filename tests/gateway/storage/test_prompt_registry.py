"""Registered prompts through the admin API and through chats, on SQLite and PostgreSQL, over the fake engine."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.model_files import ModelFiles
from gateway.tokenizer import Tokenizer
from tests.gateway.support.fake_control import BLOCK_SIZE, keys_of
from tests.gateway.support.prompts import PAST, SUPPORT, cached, chat, is_warm, register, wait_warm
from tests.gateway.support.server import until
from tests.gateway.support.stored_gateway import Gateway, OpenGateway
from tests.gateway.support.tiny_model import TOOL_TEMPLATE, write_model


@pytest.fixture(scope="session")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return write_model(tmp_path_factory.mktemp("tools"), template=TOOL_TEMPLATE)


def later(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "of use"}}


async def settled(gateway: Gateway) -> None:
    async def is_ready() -> bool:
        return (await gateway.admin.get("http://gateway/ready")).status_code == 200

    while not await is_ready():
        await asyncio.sleep(0.02)


async def test_prompt_is_registered_shown_and_listed_in_all_its_forms(gateway: Gateway) -> None:
    made = await register(gateway, text=SUPPORT + "  \n")
    (version,) = made["versions"]
    assert (made["name"], made["scope"], made["active_version"], version["version"]) == ("support", "default", 1, 1)
    assert version["num_blocks"] == version["num_tokens"] // BLOCK_SIZE > 3
    shown = await wait_warm(gateway, made["id"])
    assert shown["warm"]["num_cached_tokens"] == version["num_blocks"] * BLOCK_SIZE
    assert (await gateway.admin.get("/prompts/support")).json() == shown
    listed = (await gateway.admin.get("/prompts?tenant=default")).json()["data"]
    assert [entry["id"] for entry in listed] == [made["id"]]
    whole = (await gateway.admin.get("/prompts/support/versions/1")).json()
    assert whole["source"]["messages"][0]["content"] == SUPPORT + "  \n"
    assert whole["canonical"]["messages"][0]["content"] == SUPPORT
    assert len(whole["token_ids"]) == version["num_tokens"]
    assert [entry["action"] for entry in (await gateway.admin.get("/audit")).json()["data"]] == ["prompt.create"]


async def test_first_chat_finds_the_prompt_cached_and_counts_for_it(gateway: Gateway) -> None:
    made = await register(gateway)
    await wait_warm(gateway, made["id"])
    answer = await chat(gateway)
    assert cached(answer) == made["versions"][0]["num_blocks"] * BLOCK_SIZE
    await chat(gateway, "Translate into the language of the reader.")
    gateway.backend.forget()
    await chat(gateway)
    row = (await gateway.admin.get(f"/requests/{answer.json()['id']}")).json()
    assert row["prompt"] == made["id"]
    statistics = (await gateway.admin.get("/prompts/support/statistics")).json()
    assert (statistics["num_requests"], statistics["num_hits"]) == (2, 1)
    assert (statistics["num_cached_tokens"], statistics["share_of_requests"]) == (cached(answer), 2 / 3)
    assert statistics["last_used_at"] > row["created_at"]
    unused = await register(gateway, "unused")
    used, other = (await gateway.admin.get("/usage/prompts")).json()["data"]
    assert (used["id"], used["active"]) == (made["id"], made["versions"][0])
    assert (used["num_requests"], used["num_hits"], used["num_cached_tokens"]) == (2, 1, cached(answer))
    assert (used["num_saved_tokens"], used["last_used_at"]) == (cached(answer), statistics["last_used_at"])
    assert (other["id"], other["num_requests"], other["num_saved_tokens"]) == (unused["id"], 0, 0)
    refused = await gateway.admin.get("/usage/prompts", params={"since": row["created_at"], "until": row["created_at"]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "since")
    before = (await gateway.admin.get("/prompts/support/statistics", params={"until": row["created_at"]})).json()
    assert (before["num_requests"], before["share_of_requests"], before["last_used_at"]) == (0, None, None)
    again, size = await chat(gateway), made["versions"][0]["num_tokens"]
    assert cached(again) > size, "the question behind the prompt is cached as well, which is not the prompt's merit"
    used = (await gateway.admin.get("/usage/prompts")).json()["data"][0]
    assert used["num_saved_tokens"] == cached(answer) + size


async def test_chat_names_a_prompt_and_fills_its_slots(gateway: Gateway) -> None:
    made = await register(gateway, text=SUPPORT + " Today is {{day}}.", slots=["day"], tools=[tool("look_up")])
    reference = {"id": "support", "version": "1", "variables": {"day": "Monday"}}
    named = await chat(gateway, None, prompt=reference, tools=[tool("order")])
    in_full = await chat(gateway, SUPPORT + " Today is Monday.", tools=[tool("look_up"), tool("order")])
    assert named.status_code == in_full.status_code == 200
    first, second = (request.token_ids.tolist() for request in gateway.backend.requests)
    assert first == second
    assert (await gateway.admin.get(f"/requests/{named.json()['id']}")).json()["prompt"] == made["id"]


async def test_slots_stay_open_and_are_stated_behind_the_question_where_volatile_text_moves(
    gateway: Gateway, tokenizer: Tokenizer
) -> None:
    """So that two values share all of the prompt that stands behind the slot."""
    text = "Today is {{day}}. " + SUPPORT
    await register(gateway, text=text, slots=["day"], rules={"relocate_volatile": "on"})
    for day in ("Monday", "Sunday"):
        answer = await chat(gateway, None, prompt={"id": "support", "variables": {"day": day}})
        assert answer.status_code == 200
    first, second = (tokenizer.decode(request.token_ids.tolist()) for request in gateway.backend.requests)
    assert text in first
    assert first.replace("[{{day}}] Monday", "") == second.replace("[{{day}}] Sunday", "")
    missing = await chat(gateway, None, prompt={"id": "support"})
    assert missing.json()["error"]["param"] == "prompt.variables.day"


async def test_rules_are_off_for_a_prompt_and_for_requests_that_name_it(gateway: Gateway) -> None:
    await register(gateway, text=SUPPORT + "  ", rules={"trim_end_of_system": "off"})
    await register(gateway, "trimmed", text=SUPPORT + "  ", rules={"trim_end_of_system": "on"})
    canonical = [
        (await gateway.admin.get(f"/prompts/{name}/versions/1")).json()["canonical"]["messages"][0]["content"]
        for name in ("support", "trimmed")
    ]
    assert canonical == [SUPPORT + "  ", SUPPORT]
    for reference in ("support", "trimmed"):
        await chat(gateway, None, prompt={"id": reference})
    as_is, trimmed = (request.token_ids.tolist() for request in gateway.backend.requests)
    assert as_is != trimmed
    assert (await chat(gateway)).status_code == 200
    assert gateway.backend.requests[-1].token_ids.tolist() == trimmed


async def test_names_are_names_whatever_they_say(gateway: Gateway) -> None:
    name = "'); DROP TABLE prompts; --"
    made = await register(gateway, name)
    assert (await gateway.admin.get("/prompts")).json()["data"][0]["name"] == name
    assert cached(await chat(gateway, None, prompt={"id": name})) >= 0
    await register(gateway, "other")
    assert (await gateway.admin.get(f"/prompts/{made['id']}")).json()["name"] == name


async def test_versions_are_added_compared_activated_and_rolled_back(gateway: Gateway) -> None:
    made = await register(gateway, retention={"priority": 2})
    path = f"/prompts/{made['id']}"
    shorter = SUPPORT.replace("Be kind, be brief. ", "Be short.\n")
    added = (await gateway.admin.post(f"{path}/versions", json={"text": shorter})).json()
    assert (added["active_version"], added["versions"][0]["version"]) == (1, 2)
    assert added["versions"][0]["retention"]["priority"] == 2
    diff = (await gateway.admin.get(f"{path}/diff", params={"from": 1, "to": 2})).json()["diff"].split("\n")
    assert "+You work for the shop. Be short." in diff
    assert f"-{SUPPORT}" in diff
    assert (await gateway.admin.post(f"{path}/activate", json={"version": 2})).json()["active_version"] == 2
    await chat(gateway, None, prompt={"id": "support"})
    await chat(gateway, shorter)
    first, second = (request.token_ids.tolist() for request in gateway.backend.requests)
    assert first == second
    assert (await gateway.admin.post(f"{path}/rollback")).json()["active_version"] == 1
    assert (await gateway.admin.post(f"{path}/rollback")).status_code == 409
    assert (await gateway.admin.post(f"{path}/activate", json={"version": 3})).status_code == 404
    assert (await gateway.admin.get(f"{path}/versions/x")).status_code == 404
    made = (await gateway.admin.post(f"{path}/versions", json={"text": shorter + " Now.", "activate": True})).json()
    assert made["active_version"] == 3
    actions = [entry["action"] for entry in (await gateway.admin.get("/audit")).json()["data"]]
    assert actions == [
        *("prompt.activate", "prompt.version", "prompt.rollback", "prompt.activate", "prompt.version", "prompt.create")
    ]


async def test_retired_prompt_is_found_no_more_and_gives_its_blocks_back(gateway: Gateway) -> None:
    made = await register(gateway, retention={"pin": True})
    assert (made["warm"]["status"], made["warm"]["pinned"]) == ("warm", True)
    assert list(gateway.backend.pins) == [f"{made['id']}:1"]
    for _ in range(2):
        retired = await gateway.admin.delete(f"/prompts/{made['id']}")
        assert (retired.status_code, retired.json()["warm"]) == (200, None)
    assert not gateway.backend.pins
    assert (await chat(gateway, None, prompt={"id": "support"})).status_code == 404
    assert (await gateway.admin.get("/prompts")).json()["data"] == []
    assert (await gateway.admin.get("/prompts?retired=true")).json()["data"][0]["id"] == made["id"]
    assert (await gateway.admin.post(f"/prompts/{made['id']}/warm")).status_code == 409


async def test_pin_beyond_the_budget_is_a_conflict_with_the_numbers_and_changes_nothing(gateway: Gateway) -> None:
    gateway.backend.pinned_blocks_limit = 3
    answer = await gateway.admin.post("/prompts", json={"name": "big", "text": SUPPORT, "retention": {"pin": True}})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (409, "retention.pin")
    assert "max_pinned_ratio: the prompt has" in error["message"]
    assert "0 of at most 3 are pinned" in error["message"]
    assert (await gateway.admin.get("/prompts")).json()["data"] == []

    made = await register(gateway, "small", retention={"priority": 4})
    await wait_warm(gateway, made["id"])
    answer = await gateway.admin.put("/prompts/small/retention", json={"pin": True})
    assert answer.status_code == 409
    await wait_warm(gateway, made["id"])
    assert gateway.backend.priorities == {f"{made['id']}:1": (4, None)}
    assert not gateway.backend.pins

    gateway.backend.pinned_blocks_limit = 100
    answer = await gateway.admin.post("/prompts", json={"name": "small", "text": SUPPORT, "retention": {"pin": True}})
    assert (answer.status_code, answer.json()["error"]["param"]) == (409, "name")
    assert not gateway.backend.pins


async def test_retention_is_changed_and_ends_by_itself(gateway: Gateway) -> None:
    made = await register(gateway)
    handle = f"{made['id']}:1"
    body = {"pin": True, "priority": 3, "expires_at": later(0.6)}
    changed = await gateway.admin.put("/prompts/support/retention", json=body)
    assert (changed.status_code, changed.json()["warm"]["pinned"]) == (200, True)
    assert handle in gateway.backend.pins
    level, seconds = gateway.backend.priorities[handle]
    assert level == 3
    assert seconds is not None
    assert 0 < seconds <= 0.6
    await until(lambda: handle not in gateway.backend.pins)
    assert (await gateway.admin.get("/prompts/support")).json()["warm"]["detail"] == "its retention has expired"
    await gateway.admin.put("/prompts/support/retention", json={"pin": True})
    assert handle in gateway.backend.pins
    await gateway.admin.put("/prompts/support/retention", json={})
    await until(lambda: handle not in gateway.backend.pins)
    for bad in ({"expires_at": PAST}, {"pin": 1}, {"priority": 1.5}, {"forever": True}):
        assert (await gateway.admin.put("/prompts/support/retention", json=bad)).status_code == 400
    await gateway.admin.put("/prompts/support/retention", json={"priority": 1})
    await until(lambda: gateway.backend.priorities.get(handle) == (1, None))
    assert not gateway.backend.pins


async def test_tenants_share_a_public_prompt_and_nothing_else(gateway: Gateway) -> None:
    keys = {name: await gateway.make_key(name) for name in ("acme", "beta")}
    text = "A text that nobody has registered, long enough for some blocks of the cache."
    assert cached(await chat(gateway, text, keys["acme"])) == 0
    assert cached(await chat(gateway, text, keys["beta"])) == 0
    assert cached(await chat(gateway, text, keys["acme"])) > 0

    private = await register(gateway, "own", text="Only for acme. " + SUPPORT, scope="acme")
    public = await register(gateway, "all", scope="public")
    assert (private["scope"] != "acme", public["scope"]) == (True, "public")
    await wait_warm(gateway, private["id"])
    await wait_warm(gateway, public["id"])
    num_public = public["versions"][0]["num_blocks"] * BLOCK_SIZE
    for name, key in keys.items():
        assert cached(await chat(gateway, key=key, user=f"I am {name}, what is up")) == num_public
        assert (await chat(gateway, None, key, prompt={"id": "all"})).status_code == 200
    assert cached(await chat(gateway, "Only for acme. " + SUPPORT, keys["beta"])) == 0
    assert cached(await chat(gateway, "Only for acme. " + SUPPORT, keys["acme"])) > 0
    assert (await chat(gateway, None, keys["beta"], prompt={"id": "own"})).status_code == 404
    # What follows the public prompt is a tenant's own.
    shared = [request for request in gateway.backend.requests if len(request.scopes) == 2]
    first, second = {request.tenant: request for request in shared}.values()
    assert first.scopes[0] == second.scopes[0]
    assert first.scopes[1][0] != second.scopes[1][0]


async def test_public_prompt_that_is_retired_is_shared_no_more(gateway: Gateway) -> None:
    key = await gateway.make_key("acme")
    made = await register(gateway, scope="public")
    await wait_warm(gateway, made["id"])
    assert cached(await chat(gateway, key=key)) > 0
    await gateway.admin.post(f"/prompts/{made['id']}/retire")
    assert cached(await chat(gateway, key=key)) == 0


async def test_drift_is_listed_with_place_and_count_and_what_was_repaired_as_repaired(gateway: Gateway) -> None:
    key = await gateway.make_key("acme")
    tools = [tool("look_up"), tool("order")]
    await register(gateway, scope="acme", tools=tools)
    edited = SUPPORT.replace("be brief", "be short")
    for times, system, own in ((3, SUPPORT + " ", tools), (2, edited, tools), (1, SUPPORT, tools[::-1])):
        for _ in range(times):
            await chat(gateway, system, key, tools=own)
    await chat(gateway, SUPPORT, key, tools=tools)
    variants = (await gateway.admin.get("/prompts/support/drift")).json()["variants"]
    assert [(entry["count"], entry["repaired"]) for entry in variants] == [(3, True), (2, False), (1, True)]
    assert [(entry["place"]["region"], entry["place"]["character"]) for entry in variants] == [
        ("system", len(SUPPORT)),
        ("system", edited.index("short")),
        ("tools", None),
    ]
    assert len({entry["tenant"] for entry in variants}) == 1


async def test_prompts_are_warmed_before_ready_after_a_start_and_after_an_engine_restart(
    open_gateway: OpenGateway,
) -> None:
    async with open_gateway() as gateway:
        made = await register(gateway, retention={"pin": True})
    num_cached = made["versions"][0]["num_blocks"] * BLOCK_SIZE
    async with open_gateway() as gateway:
        await settled(gateway)
        assert cached(await chat(gateway)) == num_cached
        assert list(gateway.backend.pins) == [f"{made['id']}:1"]
        gateway.backend.forget()
        gateway.backend.warmed.clear()
        gateway.backend.hash_epoch = 2
        await settled(gateway)
        assert len(gateway.backend.warmed) == 1
        assert keys_of(gateway.backend.warmed[0])
        assert list(gateway.backend.pins) == [f"{made['id']}:1"]


async def test_what_is_not_warm_in_time_is_listed_and_goes_on_behind(open_gateway: OpenGateway) -> None:
    async with open_gateway() as gateway:
        await register(gateway)
    async with open_gateway(warm_budget=0.05) as gateway:
        backend = gateway.backend
        backend.warm_delay_seconds = 1.5
        backend.hash_epoch = 5
        statuses = set()
        for _ in range(500):
            shown = (await gateway.admin.get("/prompts/support")).json()
            statuses.add(shown["warm"]["status"])
            if is_warm(shown) and "not_in_time" in statuses:
                break
            await asyncio.sleep(0.02)
        assert {"not_in_time", "warm"} <= statuses
        await settled(gateway)


async def test_another_gateway_knows_a_prompt_without_a_restart(open_gateway: OpenGateway) -> None:
    async with open_gateway() as first, open_gateway() as second:
        made = await register(first)
        await until(lambda: second.backend.warmed)
        await wait_warm(second, made["id"])
        assert cached(await chat(second)) > 0


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_prompts_outlive_a_database_that_is_gone_and_writes_are_503(gateway: Gateway) -> None:
    made = await register(gateway)
    await wait_warm(gateway, made["id"])
    Path(gateway.store.database.place).unlink()
    assert cached(await chat(gateway)) > 0
    assert (await chat(gateway, None, prompt={"id": "support"})).status_code == 200
    answer = await gateway.admin.post("/prompts", json={"name": "x", "text": "x", "retention": {"pin": True}})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable")
