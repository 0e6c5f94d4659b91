"""Predicted against reported, end to end, with an upstream that has a cache of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.model_files import ModelFiles
from gateway.options import parse_options
from gateway.settings import Settings
from gateway.storage.store import open_store, prepare_database
from tests.gateway.support.tiny_model import write_model
from tests.gateway.upstream.caching import CachingUpstream
from tests.gateway.upstream.mock import MockUpstream, proxy_of
from tests.gateway.upstream.test_proxy import metrics, sse

ADMIN = {"authorization": "Bearer open-sesame"}
HEAD = "You are a helpful assistant that answers every question in one short sentence. " * 8
LOST = "Today is 2026-08-0%d. " + HEAD


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return write_model(tmp_path_factory.mktemp("upstreams"))


def chat(*turns: str, system: str = HEAD, **fields: Any) -> dict[str, Any]:
    roles = ["user", "assistant"] * len(turns)
    said = [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)]
    return {"model": "m", "messages": [{"role": "system", "content": system}, *said], **fields}


def told(answer: httpx.Response) -> dict[str, str]:
    return dict(entry.split("=") for entry in answer.headers["x-prefixgate-cache"].split("; "))


def settings_of(files: ModelFiles, **more: Any) -> dict[str, Any]:
    return {"tokenizer": files.folder, "admin_key": "open-sesame", "accounting_sampling": 1.0, **more}


async def test_what_is_predicted_is_what_is_reported_by_whole_blocks(files: ModelFiles) -> None:
    upstream = CachingUpstream(files=files)
    async with proxy_of(upstream, **settings_of(files)) as proxy:
        first, again, other = [told(await proxy.chat(chat(turn))) for turn in ("hello", "hello", "the world")]
        shown = await metrics(proxy.client)
        listed = (await proxy.client.get("/admin/v1/upstreams", headers=ADMIN)).json()["data"][0]
    assert (first["predicted"], first["reason"]) == ("0", "never_cached")
    assert int(again["predicted"]) == int(again["cached"]) // 16 * 16 > 0
    assert again["reason"] == "hit"
    assert int(other["predicted"]) == int(other["cached"]) // 16 * 16 > 0
    estimate = listed["estimate"]
    assert (listed["is_up"], listed["in_flight"]) == (True, 0)
    assert (estimate["requests"], estimate["corrections"]) == (3, 0)
    assert estimate["prompt_tokens"] == estimate["rendered_tokens"]
    assert estimate["predicted_tokens"] == int(again["predicted"]) + int(other["predicted"])
    assert f'prefixgate_upstream_predicted_tokens_total{{upstream="{listed["url"]}"}}' in shown


async def test_an_upstream_that_forgets_is_found_out(files: ModelFiles) -> None:
    upstream = CachingUpstream(files=files, num_blocks=26)
    async with proxy_of(upstream, **settings_of(files)) as proxy:
        await proxy.chat(chat("hello"))
        await proxy.chat(chat("hello", system="the quick brown fox " * 40))
        forgotten = told(await proxy.chat(chat("hello")))
        listed = (await proxy.client.get("/admin/v1/upstreams", headers=ADMIN)).json()["data"][0]
    assert int(forgotten["cached"]) < int(forgotten["predicted"])
    assert forgotten["reason"] == "evicted"
    assert listed["estimate"]["corrections"] == 1


async def test_a_stream_says_in_its_head_what_is_predicted(files: ModelFiles) -> None:
    usage = {"prompt_tokens": 300, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
    upstream = sse(b"data: %b\n\ndata: [DONE]\n\n" % json.dumps({"id": "1", "choices": [], "usage": usage}).encode())
    async with proxy_of(upstream, **settings_of(files)) as proxy:
        await proxy.chat(chat("hello", stream=True))
        second = told(await proxy.chat(chat("hello", stream=True)))
        assert int(second["predicted"]) > 16
        assert "cached" not in second
        assert "prefixgate_upstream_corrections_total" in await metrics(proxy.client)


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{"type": "function", "function": {"name": "look"}}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y"}}]}]},
    ],
)
async def test_what_cannot_be_rendered_is_passed_on_without_a_prediction(files: ModelFiles, more: Any) -> None:
    upstream = MockUpstream()
    async with proxy_of(upstream, **settings_of(files)) as proxy:
        answer = await proxy.chat({**chat("hello"), **more})
        savings = (await proxy.client.get("/admin/v1/savings", headers=ADMIN)).json()
    assert answer.status_code == 200
    assert "predicted" not in told(answer)
    assert (savings["requests"], savings["sampled_requests"]) == (1, 0)


async def test_tools_are_rendered_by_the_template_that_was_chosen(files: ModelFiles) -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    async with proxy_of(MockUpstream(), **settings_of(files, tool_template="hermes")) as proxy:
        assert told(await proxy.chat(chat("hello", tools=tools)))["predicted"] == "0"


async def test_a_chat_that_another_upstream_took_is_predicted_there(files: ModelFiles) -> None:
    upstreams = [CachingUpstream(files=files) for _ in range(2)]
    async with proxy_of(*upstreams, **settings_of(files)) as proxy:
        await proxy.chat(chat("hello"))
        busy = next(upstream for upstream in upstreams if upstream.bodies)
        busy.status = 503
        moved = told(await proxy.chat(chat("hello")))
        stayed = told(await proxy.chat(chat("hello")))
    assert (moved["predicted"], moved["cached"]) == ("0", "0")
    assert int(stayed["predicted"]) > 0


async def test_why_a_chat_missed_is_explained_and_the_rule_that_would_have_helped_is_named(files: ModelFiles) -> None:
    upstream = CachingUpstream(files=files)
    async with proxy_of(upstream, **settings_of(files, store_content=True)) as proxy:
        await proxy.chat(chat("hello", system=HEAD + LOST % 1), **{"x-request-id": "one"})
        await proxy.chat(chat("hello", system=HEAD + LOST % 2), **{"x-request-id": "two"})
        path = "/admin/v1/requests/two/explain"
        report = (await proxy.client.get(path, headers=ADMIN)).json()
        assert (await proxy.client.get("/admin/v1/requests/no/explain", headers=ADMIN)).status_code == 404
    assert (report["id"], report["nearest"]) == ("chatcmpl-2", "chatcmpl-1")
    assert (report["reason"], report["region"]["owner"]) == ("diverged", "messages[0]")
    assert report["num_cached_tokens"] == upstream.cached[1] > 16
    assert report["prompt"].startswith("2")
    assert report["rule"]["name"] == "relocate_volatile"


async def test_why_a_chat_missed_is_in_the_request_log(files: ModelFiles, tmp_path: Path) -> None:
    settings = Settings(db=f"sqlite+aiosqlite:///{tmp_path}/x.db")
    await prepare_database(settings)
    upstream, store = CachingUpstream(files=files), open_store(settings)
    async with proxy_of(upstream, store=store, **settings_of(files)) as proxy:
        for number in range(2):
            assert (await proxy.chat(chat("hello"))).status_code == 200
            await store.log.flush()
            rows = (await proxy.client.get("/admin/v1/requests", headers=ADMIN)).json()["data"]
            assert len(rows) == number + 1
        assert (await proxy.post("/v1/messages", b"{}")).status_code == 400
        await store.log.flush()
        failed = (await proxy.client.get("/admin/v1/requests", headers=ADMIN)).json()["data"][0]
        points = (await proxy.client.get("/admin/v1/series", headers=ADMIN)).json()["points"]
    assert rows[0]["reasons"]["hit"] >= upstream.cached[1] // 16 > 0
    assert set(rows[1]["reasons"]) == {"never_cached"}
    assert (failed["status"], failed["completion_id"]) == (400, None)
    assert 0 < rows[0]["prepare_seconds"] < rows[0]["total_seconds"]
    assert failed["prepare_seconds"] is None
    assert sum(point["requests"] for point in points) == 3
    assert sum(point["cached_tokens"] or 0 for point in points) == sum(upstream.cached)


async def test_what_rules_saved_is_counted(files: ModelFiles) -> None:
    upstream = CachingUpstream(files=files)
    header = "x-anthropic-billing-header: cc_version=2.1.37.abc; cc_entrypoint=cli; cch=%05x;\n"
    async with proxy_of(upstream, **settings_of(files)) as proxy:
        for number in range(3):
            await proxy.chat(chat("hello", system=header % number + HEAD))
        savings = (await proxy.client.get("/admin/v1/savings", headers=ADMIN)).json()
    rule = next(rule for rule in savings["rules"] if rule["rule"] == "strip_client_header")
    assert (rule["fired_requests"], rule["sampled_requests"]) == (3, 3)
    assert 0 < rule["net_tokens"] <= sum(upstream.cached)


async def test_a_dry_run_has_tokens_with_a_tokenizer_and_rules_without(files: ModelFiles) -> None:
    body = {"body": chat("hello", system="Be kind.\r\n"), "endpoint": "chat.completions"}
    for settings in (settings_of(files), {"admin_key": "open-sesame"}):
        async with proxy_of(MockUpstream(), **settings) as proxy:
            tried = (await proxy.client.post("/admin/v1/normalize", json=body, headers=ADMIN)).json()
        assert tried["canonical"]["messages"][0]["content"] == "Be kind."
        assert bool(tried["token_ids"]) == ("tokenizer" in settings)
        assert ("--tokenizer" in (tried["render_error"] or "")) == ("tokenizer" not in settings)


async def test_without_a_tokenizer_nothing_is_predicted_and_the_list_says_so() -> None:
    async with proxy_of(MockUpstream(), admin_key="open-sesame") as proxy:
        assert "predicted" not in told(await proxy.chat())
        listed = (await proxy.client.get("/admin/v1/upstreams", headers=ADMIN)).json()
        assert listed["data"][0]["estimate"] is None
        assert (await proxy.client.get("/admin/v1/savings", headers=ADMIN)).status_code == 404


async def test_another_model_of_the_same_upstream_is_another_cache(files: ModelFiles) -> None:
    async with proxy_of(MockUpstream(), **settings_of(files)) as proxy:
        await proxy.chat(chat("hello"))
        assert told(await proxy.chat({**chat("hello"), "model": "n"}))["predicted"] == "0"


def test_a_tokenizer_is_for_upstreams(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--tokenizer", str(tmp_path)])
    assert "--upstream" in capsys.readouterr().err


async def test_responses_are_read_to_predict_and_sent_as_they_came(files: ModelFiles) -> None:
    upstream = MockUpstream()
    body = {"model": "m", "instructions": "Be kind.\r\n" + HEAD, "input": "hello"}
    async with proxy_of(upstream, **settings_of(files)) as proxy:
        first = told(await proxy.post("/v1/responses", body))
        second = told(await proxy.post("/v1/responses", body))
        unread = told(await proxy.post("/v1/responses", {**body, "previous_response_id": "resp_1"}))
    assert (first["predicted"], first["rules"]) == ("0", "none")
    assert int(second["predicted"]) > 16
    assert ("predicted" in unread, unread["rules"]) == (False, "unread")
    assert json.loads(upstream.bodies[0]) == body
