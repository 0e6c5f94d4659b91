"""`/admin/v1/cache` and `/admin/v1/requests/{id}/blocks`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.model_files import ModelFiles
from gateway.recent import RecentRequests
from tests.gateway.conftest import open_client
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.server import until
from tests.gateway.test_chat import PATH, chat
from tests.gateway.test_system import ADMIN


@pytest.fixture
async def admin(
    backend: FakeBackend, model_files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    monkeypatch.setenv("PREFIXGATE_ADMIN_KEY", "open-sesame")
    async with open_client(backend, model_files) as client:
        client.headers.update(ADMIN)
        yield client


async def test_cache_options_are_shown_and_changed_one_by_one(admin: httpx.AsyncClient) -> None:
    assert (await admin.get("/admin/v1/cache")).json()["options"] == {"max_shared_ratio": 0.5, "growth_reserve": 256}
    answer = await admin.patch("/admin/v1/cache", json={"max_shared_ratio": 0})
    assert (answer.status_code, answer.json()) == (200, {"max_shared_ratio": 0.0, "growth_reserve": 256})
    await admin.patch("/admin/v1/cache", json={"growth_reserve": 64, "max_shared_ratio": None})
    assert (await admin.get("/admin/v1/cache")).json()["options"] == {"max_shared_ratio": 0.0, "growth_reserve": 64}


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"max_shared_ratio": 1.5}, "max_shared_ratio", "got 1.5, wanted"),
        ({"max_shared_ratio": "0.5"}, "max_shared_ratio", "got '0.5'"),
        ({"growth_reserve": -1}, "growth_reserve", "got -1"),
        ({"growth_reserve": 1.5}, "growth_reserve", "got 1.5"),
        ({"growth_reserve": True}, "growth_reserve", "got true"),
        ({"block_size": 32}, "block_size", "wanted one of max_shared_ratio, growth_reserve"),
        ({"growth_reserve": 8, "max_pinned_ratio": 0.1}, "max_pinned_ratio", "unknown"),
        ([1], None, "wanted an object"),
    ],
)
async def test_cache_options_of_no_use_are_refused_and_change_nothing(
    admin: httpx.AsyncClient, backend: FakeBackend, body: object, param: str | None, says: str
) -> None:
    before = backend.options
    answer = await admin.patch("/admin/v1/cache", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert says in error["message"]
    assert backend.options == before


@pytest.mark.parametrize("body", [b"{", b"\xff"])
async def test_cache_options_that_are_no_json_are_refused(admin: httpx.AsyncClient, body: bytes) -> None:
    assert (await admin.patch("/admin/v1/cache", content=body)).status_code == 400


async def test_blocks_of_a_request_add_up_to_its_usage_under_both_its_names(admin: httpx.AsyncClient) -> None:
    await admin.post(PATH, json=chat())
    done = await admin.post(PATH, json=chat(), headers={"x-request-id": "mine"})
    completion, usage = done.json()["id"], done.json()["usage"]
    view = (await admin.get(f"/admin/v1/requests/{completion}/blocks")).json()
    assert (view["id"], view["status"]) == (completion, "ended")
    assert view["num_prompt_tokens"] == usage["prompt_tokens"]
    assert view["num_cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] > 0
    reasons = [block["reason"] for block in view["blocks"]]
    assert {reason: reasons.count(reason) for reason in reasons} == view["reasons"]
    names = ("block_id", "state", "ref_count", "shared", "pinned", "num_tokens", "reason", "owners")
    assert tuple(view["blocks"][0]) == names
    owners = [block["owners"] for block in view["blocks"]]
    assert owners[0][0] == "template"
    assert {"messages[0]", "messages[1]", "template"} == {owner for of in owners for owner in of}
    assert (await admin.get("/admin/v1/requests/mine/blocks")).json() == view


async def test_blocks_of_a_running_request_are_live(admin: httpx.AsyncClient, backend: FakeBackend) -> None:
    backend.delay_seconds = 600
    asking = asyncio.create_task(admin.post(PATH, json=chat(), headers={"x-request-id": "slow"}))
    await until(lambda: backend.live)
    assert (await admin.get("/admin/v1/requests/slow/blocks")).json()["status"] == "running"
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_blocks_of_an_unknown_request_are_not_found(admin: httpx.AsyncClient) -> None:
    answer = await admin.get("/admin/v1/requests/chatcmpl-0/blocks")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert "'chatcmpl-0'" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("method", "path"), [("PATCH", "/admin/v1/cache"), ("GET", "/admin/v1/requests/x/blocks")])
async def test_admin_routes_need_the_key_and_an_engine(
    admin: httpx.AsyncClient, backend: FakeBackend, method: str, path: str
) -> None:
    assert (await admin.request(method, path, headers={"authorization": "Bearer no"}, json={})).status_code == 401
    backend.is_up = False
    answer = await admin.request(method, path, json={})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "3")


async def test_admin_routes_are_counted_under_their_paths(admin: httpx.AsyncClient) -> None:
    await admin.patch("/admin/v1/cache", json={})
    assert (
        'prefixgate_requests_total{endpoint="/admin/v1/cache",status="200"} 1.0' in (await admin.get("/metrics")).text
    )


def test_recent_requests_forget_the_oldest_and_keep_the_newest_of_a_name() -> None:
    recent = RecentRequests(max_requests=2)
    for request_id, completion_id in (("a", "c1"), ("b", "c2"), ("a", "c3"), ("d", "c4")):
        recent.note(request_id, completion_id)
    assert [recent.completion_id(name) for name in ("a", "b", "d", "c9")] == ["c3", "b", "c4", "c9"]
