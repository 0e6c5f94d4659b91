"""What the context policy did is told in every answer, whole and streamed, as the SDKs read it; audit changes nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from gateway.app import create_app
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from tests.gateway.conftest import open_client
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.server import running
from tests.gateway.test_metrics import growth, scrape

LINE = "the quick brown fox jumps over the lazy dog and says hello to the world "
MESSAGES = [{"role": role, "content": f"{turn} {LINE * 21}"} for turn in range(6) for role in ("user", "assistant")] + [
    {"role": "user", "content": "Where is the fox?"}
]
SHORT = [{"role": "user", "content": "hi"}]
ADMIN_KEY = "open-sesame"
ADMIN = {"authorization": f"Bearer {ADMIN_KEY}"}
ROUTES = ("/v1/chat/completions", "/v1/messages", "/v1/responses")


@pytest.fixture
def window(backend: FakeBackend) -> None:
    """Long enough for what is sent here, and not for keeping all of it."""
    backend.max_model_len = 4096


@pytest.fixture
async def cutting(backend: FakeBackend, model_files: ModelFiles, window: None) -> AsyncIterator[httpx.AsyncClient]:
    async with open_client(backend, model_files, context_policy="on", admin_key=ADMIN_KEY) as client:
        yield client


@pytest.fixture
async def base_url(backend: FakeBackend, model_files: ModelFiles, window: None) -> AsyncIterator[str]:
    async with running(create_app(Settings(context_policy="on"), backend, model_files)) as port:
        yield f"http://127.0.0.1:{port}"


async def overview(client: httpx.AsyncClient) -> object:
    answer = await client.get("/admin/v1/overview", headers=ADMIN)
    return answer.json()["context"]


def body_of(route: str, messages: list[dict[str, Any]], **fields: object) -> dict[str, Any]:
    if route == "/v1/responses":
        return {"model": "tiny", "input": messages, "max_output_tokens": 50, **fields}
    return {"model": "tiny", "messages": messages, "max_tokens": 50, **fields}


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("route", ROUTES)
async def test_answer_says_what_was_left_out(cutting: httpx.AsyncClient, backend: FakeBackend, route: str) -> None:
    answer = await cutting.post(route, json=body_of(route, MESSAGES))
    told = answer.json()["context_management"]
    assert told["input_tokens"] == len(backend.requests[-1].token_ids)
    assert told["original_input_tokens"] > 1.5 * told["input_tokens"]
    edits = {edit["type"]: edit for edit in told["applied_edits"]}
    assert edits["summarize"]["count"] > 0
    assert edits["summarize"]["cleared_input_tokens"] > 1000
    assert answer.headers["x-prefixgate-cache"].endswith("rules=context_policy")


@pytest.mark.parametrize("route", ROUTES)
async def test_stream_says_the_same_once_at_its_end(cutting: httpx.AsyncClient, route: str) -> None:
    whole = (await cutting.post(route, json=body_of(route, MESSAGES))).json()["context_management"]
    events = events_of(await cutting.post(route, json=body_of(route, MESSAGES, stream=True)))
    (told,) = [event for event in events if "context_management" in event.get("response", event)]
    assert told.get("response", told)["context_management"] == whole
    if "choices" in told:
        assert told["choices"][0]["finish_reason"] == "stop"
    else:
        assert told["type"] in ("message_delta", "response.completed")


@pytest.mark.parametrize("route", ROUTES)
async def test_short_chat_is_told_to_be_whole(cutting: httpx.AsyncClient, backend: FakeBackend, route: str) -> None:
    answer = await cutting.post(route, json=body_of(route, SHORT))
    num_tokens = len(backend.requests[-1].token_ids)
    assert answer.json()["context_management"] == {
        "applied_edits": [],
        "original_input_tokens": num_tokens,
        "input_tokens": num_tokens,
    }
    assert answer.headers["x-prefixgate-cache"].endswith("rules=none")


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_is_told_where_the_policy_is_off(client: httpx.AsyncClient, route: str, stream: bool) -> None:
    answer = await client.post(route, json=body_of(route, SHORT, stream=stream))
    assert answer.status_code == 200
    assert "context_management" not in answer.text


async def test_audit_sends_the_whole_prompt_and_counts_what_would_go(
    backend: FakeBackend, model_files: ModelFiles, window: None
) -> None:
    async with open_client(backend, model_files) as client:
        await client.post(ROUTES[0], json=body_of(ROUTES[0], MESSAGES))
    async with open_client(backend, model_files, context_policy="audit") as client:
        before = await scrape(client)
        answer = await client.post(ROUTES[0], json=body_of(ROUTES[0], MESSAGES))
        grown = growth(before, await scrape(client))
    first, second = backend.requests
    assert list(first.token_ids) == list(second.token_ids)
    assert "context" not in answer.text + answer.headers["x-prefixgate-cache"]
    assert grown["prefixgate_context_requests_total[audit]"] == 1
    assert grown["prefixgate_context_cleared_tokens_total[audit][summarize]"] > 1000
    assert not any(name.startswith("prefixgate_context") and "[on]" in name for name in grown)


async def test_metrics_count_requests_cuts_and_tokens(cutting: httpx.AsyncClient) -> None:
    before = await scrape(cutting)
    stops = range(1, len(MESSAGES) + 1, 2)
    answers = [await cutting.post(ROUTES[0], json=body_of(ROUTES[0], MESSAGES[:stop])) for stop in stops]
    told = [answer.json()["context_management"] for answer in answers]
    num_edited = sum(bool(one["applied_edits"]) for one in told)
    grown = {name: value for name, value in growth(before, await scrape(cutting)).items() if "_context_" in name}
    assert grown["prefixgate_context_requests_total[on]"] == len(told)
    assert grown["prefixgate_context_edited_requests_total[on]"] == num_edited > 0
    assert grown["prefixgate_context_cuts_total[on]"] == 1
    assert grown["prefixgate_context_edit_seconds_count"] == len(told)
    cleared = sum(value for name, value in grown.items() if "cleared_tokens" in name)
    net = cleared - grown["prefixgate_context_added_tokens_total[on]"]
    assert net == sum(one["original_input_tokens"] - one["input_tokens"] for one in told)
    sums = {"requests": len(told), "edited_requests": num_edited, "cuts": 1, "cleared_tokens": net}
    assert await overview(cutting) == sums


async def test_overview_tells_off_from_not_yet(
    cutting: httpx.AsyncClient, backend: FakeBackend, model_files: ModelFiles
) -> None:
    async with open_client(backend, model_files, admin_key=ADMIN_KEY) as client:
        assert await overview(client) is None
    none_yet = {"requests": 0, "edited_requests": 0, "cuts": 0, "cleared_tokens": 0}
    assert await overview(cutting) == none_yet


async def test_openai_sdk_reads_it(base_url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="ignored", max_retries=0) as client:
        whole = await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=50)
        stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=50, stream=True)
        chunks = [chunk async for chunk in stream]
        response = await client.responses.create(model="tiny", input=MESSAGES, max_output_tokens=50)
        events = client.responses.stream(model="tiny", input=MESSAGES, max_output_tokens=50)
        async with events as opened:
            last = await opened.get_final_response()
    told = whole.model_extra["context_management"]
    assert told["applied_edits"][0]["type"] == "summarize"
    assert [chunk.model_extra["context_management"] for chunk in chunks if chunk.model_extra] == [told]
    assert response.model_extra["context_management"] == last.model_extra["context_management"] == told


async def test_anthropic_sdk_reads_it_as_its_own_field(base_url: str) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 50}
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="ignored", max_retries=0) as client:
        message = await client.messages.create(**asked)
        beta = await client.beta.messages.create(**asked, betas=["context-management-2025-06-27"])
        async with client.messages.stream(**asked) as stream:
            streamed = [event async for event in stream if event.type == "message_delta"]
        async with client.beta.messages.stream(**asked) as stream:
            whole = await stream.get_final_message()
    told = message.model_extra["context_management"]
    assert told["applied_edits"][0]["type"] == "summarize"
    assert streamed[0].model_extra["context_management"] == told
    for read in (beta.context_management, whole.context_management):
        edits = [(edit.type, edit.cleared_input_tokens) for edit in read.applied_edits]
        assert edits == [(edit["type"], edit["cleared_input_tokens"]) for edit in told["applied_edits"]]
        assert read.model_extra["input_tokens"] == told["input_tokens"]
