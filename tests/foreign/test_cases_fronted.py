"""The cases of cache misses in front of llama-server, and what was predicted against what it reports."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.upstream.app import upstream_rules
from tests.foreign.conftest import ADMIN_KEY, MODEL
from tests.gateway.support.cases import REGISTERED, Case
from tests.gateway.upstream.fronted import Told, ask, assert_settled, fronted_cases

pytestmark = [pytest.mark.foreign, pytest.mark.model]

ADMIN = {"authorization": f"Bearer {ADMIN_KEY}"}
RULES = frozenset(rule.name for rule in upstream_rules().rules)
MOST_REFUSED = 3
"""Cases that llama-server has no way to answer."""
BILLING = "x-anthropic-billing-header: cc_version=2.1.37.abc; cc_entrypoint=cli; cch=%05x;\n"
HEAD = "You are the friendly guide of a small museum of clocks. Answer in one short sentence. " * 12


@contextlib.asynccontextmanager
async def switched_on(client: httpx.AsyncClient, case: Case) -> AsyncIterator[None]:
    path = f"/admin/v1/rules/{case.on}"
    if case.on is not None:
        body = {"mode": "on", "params": REGISTERED.get(case.on, {})}
        (await client.put(path, json=body, headers=ADMIN)).raise_for_status()
    try:
        yield
    finally:
        if case.on is not None:
            (await client.delete(path, headers=ADMIN)).raise_for_status()


async def test_the_right_rule_fires_and_what_must_meet_meets(gateway_url: str) -> None:
    short, refused = {"max_tokens": 1, "temperature": 0}, []
    async with httpx.AsyncClient(base_url=gateway_url, timeout=60) as client:
        for case in fronted_cases():
            try:
                async with switched_on(client, case):
                    told = [await ask(client, {**body, **short}) for body in case.bodies]
            except httpx.HTTPStatusError:
                refused.append(case.name)
            else:
                assert_settled(case, told, rules=RULES, block_size=1)
    # It goes on from no turn of calls, for one.
    assert len(refused) <= MOST_REFUSED, refused


def chats() -> dict[str, list[dict[str, Any]]]:
    """Series of bodies, as apps send them."""

    def body(system: str, *turns: str) -> dict[str, Any]:
        said = [{"role": ("user", "assistant")[number % 2], "content": turn} for number, turn in enumerate(turns)]
        return {"model": MODEL, "messages": [{"role": "system", "content": system}, *said], "max_tokens": 8}

    turns = ["Hello!", "Welcome to our clocks.", "Which one is oldest?", "The one by the door.", "And the newest?"]
    return {
        "one chat grows by a turn": [body(HEAD, *turns[:size]) for size in (1, 3, 5)],
        "four users, one head": [body(HEAD, f"I am user {number}.") for number in range(4)],
        "a header that changes": [body(BILLING % number + HEAD, "Hello!") for number in range(4)],
        "a date at the end of the head": [body(f"{HEAD}Today is 2026-08-0{day}.", "Hello!") for day in (1, 2, 3)],
        "two chats in turns, one slot": [body(f"Guide {name}. {HEAD}", "Hello!") for name in "ABAB"],
    }


async def test_predicted_against_reported(gateway_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[tuple[str, list[Told]]] = []
    async with httpx.AsyncClient(base_url=gateway_url, timeout=60) as client:
        for name, bodies in chats().items():
            rows.append((name, [await ask(client, body) for body in bodies]))
        estimate = (await client.get("/admin/v1/upstreams", headers=ADMIN)).json()["data"][0]["estimate"]
        savings = (await client.get("/admin/v1/savings", headers=ADMIN)).json()
    table = ["", "| series | predicted / reported of prompt tokens | reasons |", "|---|---|---|"]
    for name, told in rows:
        figures = ", ".join(f"{one.predicted}/{one.num_cached_tokens} of {one.num_prompt_tokens}" for one in told)
        table.append(f"| {name} | {figures} | {', '.join(str(one.reason) for one in told)} |")
    table += [str(estimate), str([rule for rule in savings["rules"] if rule["net_tokens"]])]
    with capsys.disabled():
        print("\n".join(table))  # noqa: T201 -- for the documentation
    by_name = dict(rows)
    assert all(one.predicted is not None for told in by_name.values() for one in told)
    assert (
        by_name["a header that changes"][-1].num_cached_tokens
        >= by_name["a header that changes"][-1].num_prompt_tokens - 1
    )
    for one in by_name["four users, one head"][1:]:
        assert one.predicted <= one.num_cached_tokens < one.predicted + 32
    assert estimate["prompt_tokens"] == estimate["rendered_tokens"]


async def test_a_miss_is_explained(gateway_url: str) -> None:
    def body(day: int) -> dict[str, Any]:
        system = {"role": "system", "content": f"{HEAD}Today is 2026-08-0{day}. {HEAD}"}
        return {"model": MODEL, "messages": [system, {"role": "user", "content": "Hello!"}], "max_tokens": 1}

    async with httpx.AsyncClient(base_url=gateway_url, timeout=60) as client:
        for day in (1, 2):
            await client.post("/v1/chat/completions", json=body(day), headers={"x-request-id": f"day-{day}"})
        report = (await client.get("/admin/v1/requests/day-2/explain", headers=ADMIN)).json()
    assert (report["reason"], report["region"]["owner"]) == ("diverged", "messages[0]")
    assert report["prompt"].startswith("2")
    assert report["cached"].startswith("1")
    assert report["rule"]["name"] == "relocate_volatile"
