"""Wrong bodies for the other endpoints, each with the field that the answer must name."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.test_bad_input import BODIES, LONG, USER, nested


def message(**fields: object) -> dict[str, object]:
    return {"model": "tiny", "max_tokens": 5, "messages": [USER], **fields}


def block(**fields: object) -> dict[str, object]:
    return message(messages=[{"role": "user", "content": [fields]}])


def said(**fields: object) -> dict[str, object]:
    return message(messages=[{"role": "assistant", "content": [fields]}])


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x/1.png"}}
USE = {"type": "tool_use", "id": "1", "name": "f", "input": {}}

MESSAGES: dict[str, tuple[dict[str, object], str]] = {
    "no-model": ({"max_tokens": 5, "messages": [USER]}, "model"),
    "no-max-tokens": (message(max_tokens=None), "max_tokens"),
    "max-tokens-zero": (message(max_tokens=0), "max_tokens"),
    "temperature-high": (message(temperature=1.1), "temperature"),
    "temperature-text": (message(temperature="hot"), "temperature"),
    "top-p-high": (message(top_p=1.1), "top_p"),
    "top-k-low": (message(top_k=-1), "top_k"),
    "stream-number": (message(stream=1), "stream"),
    "stops-text": (message(stop_sequences="a"), "stop_sequences"),
    "stops-empty-text": (message(stop_sequences=["a", ""]), "stop_sequences[1]"),
    "stops-too-many": (message(stop_sequences=["a"] * 17), "stop_sequences"),
    "thinking-text": (message(thinking="on"), "thinking"),
    "thinking-unknown": (message(thinking={"type": "on"}), "thinking.type"),
    "no-messages": (message(messages=None), "messages"),
    "messages-empty": (message(messages=[]), "messages"),
    "messages-too-many": (message(messages=[USER] * 32_769), "messages"),
    "prompt-too-long": (message(system=LONG), "messages"),
    "role-system": (message(messages=[{"role": "system", "content": "hi"}]), "messages[0].role"),
    "message-text": (message(messages=["hi"]), "messages[0]"),
    "content-null": (message(messages=[{"role": "user"}]), "messages[0].content"),
    "content-empty": (message(messages=[{"role": "user", "content": []}]), "messages[0].content"),
    "block-text": (message(messages=[{"role": "user", "content": ["hi"]}]), "messages[0].content[0]"),
    "block-untyped": (block(text="hi"), "messages[0].content[0].type"),
    "text-number": (block(type="text", text=5), "messages[0].content[0].text"),
    "image": (block(**IMAGE), "messages[0].content[0].type"),
    "document": (block(type="document", source={"type": "base64"}), "messages[0].content[0].source.type"),
    "document-sourceless": (block(type="document"), "messages[0].content[0].source"),
    "document-number": (
        block(type="document", source={"type": "file", "file_id": 3}),
        "messages[0].content[0].source.file_id",
    ),
    "document-cited": (
        block(type="document", source={"type": "file", "file_id": "a"}, citations={"enabled": True}),
        "messages[0].content[0].citations.enabled",
    ),
    "use-of-user": (block(**USE), "messages[0].content[0].type"),
    "result-of-assistant": (said(type="tool_result", tool_use_id="1"), "messages[0].content[0].type"),
    "result-without-id": (block(type="tool_result"), "messages[0].content[0].tool_use_id"),
    "result-number": (block(type="tool_result", tool_use_id="1", content=5), "messages[0].content[0].content"),
    "result-error-text": (block(type="tool_result", tool_use_id="1", is_error="no"), "messages[0].content[0].is_error"),
    "result-image": (
        block(type="tool_result", tool_use_id="1", content=[IMAGE]),
        "messages[0].content[0].content[0].type",
    ),
    "use-without-id": (said(**{**USE, "id": None}), "messages[0].content[0].id"),
    "use-name": (said(**{**USE, "name": ""}), "messages[0].content[0].name"),
    "use-input-text": (said(**{**USE, "input": "{}"}), "messages[0].content[0].input"),
    "use-input-deep": (said(**{**USE, "input": {"a": nested(100)}}), "messages[0].content[0].input"),
    "thinking-number": (said(type="thinking", thinking=5), "messages[0].content[0].thinking"),
    "system-number": (message(system=5), "system"),
    "system-image": (message(system=[IMAGE]), "system[0].type"),
    "tools": (message(tools=[{"name": "f", "input_schema": {}}]), "tools"),
    "tools-object": (message(tools={}), "tools"),
    "tool-of-the-provider": (message(tools=[{"type": "web_search_20250305", "name": "web_search"}]), "tools[0].type"),
    "tool-name": (message(tools=[{"input_schema": {}}]), "tools[0].name"),
    "tool-name-with-a-blank": (message(tools=[{"name": "a b", "input_schema": {}}]), "tools[0].name"),
    "tool-description": (message(tools=[{"name": "f", "description": 5}]), "tools[0].description"),
    "tool-schema": (message(tools=[{"name": "f"}]), "tools[0].input_schema"),
    "tool-deep": (message(tools=[{"name": "f", "input_schema": {"a": nested(100)}}]), "tools[0]"),
    "tool-choice-text": (message(tool_choice="any"), "tool_choice"),
    "tool-choice-type": (message(tool_choice={"type": "required"}), "tool_choice.type"),
    "tool-choice-any-without-tools": (message(tool_choice={"type": "any"}), "tool_choice"),
    "tool-choice-name": (message(tool_choice={"type": "tool"}), "tool_choice.name"),
    "tool-choice-parallel": (
        message(tool_choice={"type": "auto", "disable_parallel_tool_use": 1}),
        "tool_choice.disable_parallel_tool_use",
    ),
    "tools-of-one-name": (message(tools=[{"name": "f", "input_schema": {}}] * 2), "tools[1].name"),
    "mcp-servers": (message(mcp_servers=[{"type": "url", "url": "http://x", "name": "x"}]), "mcp_servers"),
    "container": (message(container="c"), "container"),
    "compaction": (message(compaction={"type": "summarize"}), "compaction"),
    "cache-control-type": (message(cache_control={"type": "forever"}), "cache_control.type"),
    "tools-too-many": (message(tools=[{"name": "f", "input_schema": {}}] * 1025), "tools"),
    "thinking-budget": (message(thinking={"type": "enabled", "budget_tokens": 0}), "thinking.budget_tokens"),
    "use-not-rendered": (said(**USE), "messages[0].tool_calls"),
    "diagnostics": (message(diagnostics=5), "diagnostics"),
    "metadata": (message(metadata=5), "metadata"),
    "output-config": (message(output_config=[]), "output_config"),
    "output-effort": (message(output_config={"effort": 5}), "output_config.effort"),
    "output-format": (message(output_config={"format": {"type": "xml"}}), "output_config.format.type"),
    "metadata-user": (message(metadata={"user_id": 5}), "metadata.user_id"),
}


@pytest.mark.parametrize(("body", "field"), MESSAGES.values(), ids=MESSAGES)
async def test_bad_field_of_a_message_is_named(
    client: httpx.AsyncClient, backend: FakeBackend, body: dict[str, object], field: str
) -> None:
    answer = await client.post("/v1/messages", json=body)
    error = answer.json()
    assert (answer.status_code, error["type"], error["error"]["type"]) == (400, "error", "invalid_request_error")
    assert error["error"]["message"].startswith(f"{field}: ")
    assert backend.requests == []


_COUNTED = re.compile("model|messages|system|tools|tool_choice|thinking|cache_control")
_COUNTED_ALL_THE_SAME = {"prompt-too-long", "tool-choice-any-without-tools"}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param(*row, id=name)
        for name, row in MESSAGES.items()
        if _COUNTED.match(row[1]) and name not in _COUNTED_ALL_THE_SAME
    ],
)
async def test_what_a_message_may_not_say_is_not_counted(
    client: httpx.AsyncClient, body: dict[str, object], field: str
) -> None:
    answer = await client.post("/v1/messages/count_tokens", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(f"{field}: ")


def completion(**fields: object) -> dict[str, object]:
    return {"model": "tiny", "prompt": "hi", **fields}


COMPLETIONS: dict[str, tuple[dict[str, object], str]] = {
    "no-model": ({"prompt": "hi"}, "model"),
    "no-prompt": (completion(prompt=None), "prompt"),
    "prompt-empty": (completion(prompt=""), "prompt"),
    "prompt-no-tokens": (completion(prompt=[]), "prompt"),
    "prompt-object": (completion(prompt={"id": "x"}), "prompt"),
    "prompts-many": (completion(prompt=["a"] * 129), "prompt"),
    "answers-many": (completion(prompt=["a"] * 65, n=2), "prompt"),
    "prompts-one-empty": (completion(prompt=["a", ""]), "prompt[1]"),
    "prompts-mixed": (completion(prompt=["a", 5]), "prompt[1]"),
    "prompts-token": (completion(prompt=[[1], [2, -1]]), "prompt[1][1]"),
    "prompts-one-too-long": (completion(prompt=["a", LONG]), "prompt[1]"),
    "prompt-empty-in-list": (completion(prompt=[""]), "prompt[0]"),
    "prompt-token-text": (completion(prompt=[50, "a"]), "prompt[1]"),
    "prompt-token-true": (completion(prompt=[[True]]), "prompt[0][0]"),
    "prompt-token-high": (completion(prompt=[400]), "prompt[0]"),
    "prompt-token-low": (completion(prompt=[50, -1]), "prompt[1]"),
    "prompt-too-long": (completion(prompt=LONG), "prompt"),
    "prompt-far-too-long": (completion(prompt=LONG * 20), "prompt"),
    "prompt-tokens-too-long": (completion(prompt=[50] * 512), "prompt"),
    "prompt-tokens-too-many": (completion(prompt=[50] * 1_000_001), "prompt"),
    "answer-too-long": (completion(max_tokens=512), "max_tokens"),
    "max-tokens-zero": (completion(max_tokens=0), "max_tokens"),
    "temperature": (completion(temperature=3), "temperature"),
    "stop": (completion(stop=5), "stop"),
    "stream-options": (completion(stream_options={}), "stream_options"),
    "echo": (completion(echo=1), "echo"),
    "add-special-tokens": (completion(add_special_tokens=1), "add_special_tokens"),
    "n-zero": (completion(n=0), "n"),
    "n-many": (completion(n=129), "n"),
    "best-of": (completion(best_of=2), "best_of"),
    "suffix": (completion(suffix="x"), "suffix"),
    "best-of-text": (completion(best_of="2"), "best_of"),
    "logprobs-true": (completion(logprobs=True), "logprobs"),
    "logprobs-negative": (completion(logprobs=-1), "logprobs"),
    "logprobs-many": (completion(logprobs=21), "logprobs"),
    "prompt-logprobs": (completion(prompt_logprobs="1"), "prompt_logprobs"),
    "cache-salt": (completion(cache_salt=5), "cache_salt"),
    "max-tokens-zero-with-echo-alone": (completion(max_tokens=0, echo=True), "max_tokens"),
}


@pytest.mark.parametrize(("body", "field"), COMPLETIONS.values(), ids=COMPLETIONS)
async def test_bad_field_of_a_completion_is_named(
    client: httpx.AsyncClient, backend: FakeBackend, body: dict[str, object], field: str
) -> None:
    answer = await client.post("/v1/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", field)
    assert error["message"].startswith(f"{field}: ")
    assert backend.requests == []


@pytest.mark.parametrize(
    "path",
    ["/v1/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses", "/tokenize", "/detokenize"],
)
@pytest.mark.parametrize(("body", "words"), BODIES.values(), ids=BODIES)
async def test_bad_body_is_400_elsewhere_too(client: httpx.AsyncClient, path: str, body: bytes, words: str) -> None:
    answer = await client.post(path, content=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
