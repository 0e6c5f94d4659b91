"""`/admin/v1/usage/tenants`: who asked for how much, of which limits."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.gateway.storage.conftest import OpenGateway
from tests.gateway.support.fake_control import TOTAL_BLOCKS
from tests.gateway.support.server import until
from tests.gateway.support.stored_gateway import Gateway


async def usage(gateway: Gateway, **query: object) -> dict[str, dict[str, Any]]:
    answer = await gateway.admin.get("/usage/tenants", params=query)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    return {row["name"]: row for row in answer.json()["data"]}


async def test_each_tenant_has_what_its_requests_sum_up_to_and_what_it_used_of_its_limits(
    gateway: Gateway,
) -> None:
    busy, idle = await gateway.make_key("busy"), await gateway.make_key("idle")
    await gateway.admin.patch("/tenants/busy", json={"limits": {"requests_per_day": 9, "concurrency": 2}})
    answers = [await gateway.chat(busy, "one " * 20) for _ in range(2)]
    await gateway.chat(busy, temperature=9)
    told = [answer.json()["usage"] for answer in answers]
    rows = await usage(gateway)
    prompt = sum(one["prompt_tokens"] for one in told)
    cached = sum(one["prompt_tokens_details"]["cached_tokens"] for one in told)
    assert cached > 0
    (newest, *_) = (await gateway.admin.get("/requests", params={"tenant": "busy"})).json()["data"]
    tenant = (await gateway.admin.get("/tenants/busy")).json()
    num_blocks = (await gateway.backend.snapshot()).blocks["cached_blocks"]
    assert rows["busy"] == {
        "tenant": tenant["id"],
        "name": "busy",
        "requests": 3,
        "errors": 1,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "output_tokens": sum(one["completion_tokens"] for one in told),
        "hit_rate": cached / prompt,
        "limits": {"requests_per_day": 9, "concurrency": 2},
        "used": {"requests_per_day": 3, "concurrency": 0},
        "cache_blocks": num_blocks,
        "cache_share": num_blocks / TOTAL_BLOCKS,
        "last_used_at": newest["created_at"],
    }
    assert rows["idle"] | {"tenant": None} == {
        **dict.fromkeys(rows["idle"], 0),
        **dict.fromkeys(("tenant", "hit_rate", "last_used_at")),
        "name": "idle",
        "limits": {},
        "used": {},
    }
    assert idle


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_blocks_of_no_tenant_have_rows_of_their_own_and_without_an_engine_nobody_knows(gateway: Gateway) -> None:
    await gateway.chat(content="one " * 20)
    assert set(await usage(gateway)) == {"default"}
    await gateway.admin.put("/rules/overwrite_client_salt", json={"mode": "off"})
    await gateway.chat(content="two " * 20, cache_salt="apart")
    await gateway.admin.post("/prompts", json={"name": "mine", "text": "Be kind. " * 20, "scope": "public"})
    await until(lambda: len(gateway.backend.warmed))
    rows = await usage(gateway)
    assert set(rows) == {"default", "public", "other"}
    total = (await gateway.backend.snapshot()).blocks["cached_blocks"]
    assert sum(row["cache_blocks"] for row in rows.values()) == total
    assert all(row["cache_share"] == row["cache_blocks"] / TOTAL_BLOCKS > 0 for row in rows.values())
    assert (rows["other"]["requests"], rows["public"]["last_used_at"]) == (None, None)
    gateway.backend.is_up = False
    rows = await usage(gateway)
    assert set(rows) == {"default"}
    assert (rows["default"]["cache_blocks"], rows["default"]["requests"]) == (None, 2)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_only_hours_of_the_span_count(gateway: Gateway) -> None:
    await gateway.chat()
    now = time.time()
    assert (await usage(gateway))["default"]["requests"] == 1
    assert (await usage(gateway, since=now - 9 * 3600, until=now - 7200))["default"]["requests"] == 0
    assert (await gateway.admin.get("/usage/tenants", params={"since": now, "until": now - 1})).status_code == 400


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_many_tenants_take_one_transaction_as_one_does(
    open_gateway: OpenGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_gateway(poll_seconds=3600) as gateway:
        for number in range(5):
            await gateway.admin.post("/tenants", json={"name": f"t{number}"})
        reads = []
        read = gateway.store.database.read
        monkeypatch.setattr(gateway.store.database, "read", lambda: reads.append(1) or read())
        assert len(await usage(gateway)) == 6
        assert len(reads) == 1
