"""Calls and thoughts through both providers' endpoints, on a backend that says what is written here."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.answer_pieces import AnswerEnd, Call, WholeAnswer
from gateway.app import create_app
from gateway.model_files import ModelFiles
from gateway.normalize.registry import RuleRegistry
from gateway.normalize.rule import Mode
from gateway.normalize.rules import built_in_rules
from gateway.settings import Settings
from gateway.tokenizer import Tokenizer
from tests.gateway.conftest import open_client
from tests.gateway.support.scripted import ScriptedBackend
from tests.gateway.support.templates import write_tokenizer
from tests.gateway.support.tiny_model import EOS_ID, TEMPLATE, write_model

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
SCHEMA = {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": SCHEMA}}
OTHER = {"type": "function", "function": {"name": "stop", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 5}}\n</tool_call>'
TWO = CALL + '\n<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
USER = {"role": "user", "content": "hi"}


def chat(*turns: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [USER, *turns], "tools": [TOOL, OTHER], **fields}


def message(*turns: dict[str, Any], **fields: Any) -> dict[str, Any]:
    tools = [
        {"name": "look", "description": "Looks.", "input_schema": SCHEMA},
        {"name": "stop", "input_schema": {"type": "object"}},
    ]
    return {"model": "tiny", "max_tokens": 400, "messages": [USER, *turns], "tools": tools, **fields}


@pytest.fixture
def backend(tokenizer: Tokenizer) -> ScriptedBackend:
    return ScriptedBackend(tokenizer, CALL)


@pytest.fixture
async def client(backend: ScriptedBackend, model_files: ModelFiles) -> AsyncIterator[httpx.AsyncClient]:
    async with open_client(backend, model_files, tool_template="hermes") as client:
        yield client


async def ask(client: httpx.AsyncClient, body: dict[str, Any], path: str = CHAT) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


async def stream(client: httpx.AsyncClient, body: dict[str, Any], path: str = CHAT) -> list[dict[str, Any]]:
    answer = await client.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def names_of(calls: list[dict[str, Any]]) -> list[str]:
    return [call["function"]["name"] for call in calls]


async def test_a_call_of_a_whole_answer(client: httpx.AsyncClient, backend: ScriptedBackend) -> None:
    choice = (await ask(client, chat()))["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call == {
        "id": call["id"],
        "type": "function",
        "function": {"name": "look", "arguments": '{"at": 5}'},
    }
    assert call["id"].startswith("call_")
    assert backend.requests[0].sampling.grammar is None


async def test_calls_stream_by_index_and_in_fragments(client: httpx.AsyncClient, backend: ScriptedBackend) -> None:
    backend.say("Let me look.\n" + TWO)
    chunks = [chunk["choices"][0] for chunk in await stream(client, chat())]
    deltas = [delta for chunk in chunks for delta in chunk["delta"].get("tool_calls", [])]
    starts = [delta for delta in deltas if "id" in delta]
    assert [(delta["index"], delta["function"]) for delta in starts] == [
        (0, {"name": "look", "arguments": ""}),
        (1, {"name": "stop", "arguments": ""}),
    ]
    fragments = [delta["function"]["arguments"] for delta in deltas if "id" not in delta and delta["index"] == 0]
    assert "".join(fragments) == '{"at": 5}'
    assert len(fragments) > 2
    assert "".join(chunk["delta"].get("content") or "" for chunk in chunks) == "Let me look."
    assert chunks[-1]["finish_reason"] == "tool_calls"


async def test_a_stream_of_calls_alone_has_no_content(client: httpx.AsyncClient, backend: ScriptedBackend) -> None:
    for said, content in ((CALL, None), ("Hi" + CALL, ""), ("Hi", "")):
        backend.say(said)
        first = (await stream(client, chat()))[0]["choices"][0]["delta"]
        assert first == {"role": "assistant", "content": content, "refusal": None}


def test_calls_are_printed_for_the_request_log() -> None:
    calls = [Call("a", "look", '{"at": 5}'), Call("b", "stop", "{}")]
    ended, printed = (
        AnswerEnd("tool_calls", None, 9),
        '{"name": "look", "arguments": {"at": 5}}\n{"name": "stop", "arguments": {}}',
    )
    assert WholeAnswer(ended, calls=calls).as_text() == printed
    assert WholeAnswer(ended, "Hi", calls=calls).as_text() == f"Hi\n{printed}"
    assert (WholeAnswer(ended, "Hi").as_text(), WholeAnswer(ended).as_text()) == ("Hi", "")


async def test_calls_of_anthropic(client: httpx.AsyncClient, backend: ScriptedBackend) -> None:
    backend.say("Let me look.\n" + TWO)
    answer = await ask(client, message(), MESSAGES)
    assert answer["stop_reason"] == "tool_use"
    kinds = [(block["type"], block.get("name"), block.get("input")) for block in answer["content"]]
    assert kinds == [("text", None, None), ("tool_use", "look", {"at": 5}), ("tool_use", "stop", {})]
    events = await stream(client, message(), MESSAGES)
    started = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [(block["type"], block.get("name")) for block in started] == [
        ("text", None),
        ("tool_use", "look"),
        ("tool_use", "stop"),
    ]
    deltas = [event for event in events if event["type"] == "content_block_delta" and event["index"] == 1]
    assert {delta["delta"]["type"] for delta in deltas} == {"input_json_delta"}
    assert "".join(delta["delta"]["partial_json"] for delta in deltas) == '{"at": 5}'
    numbers = [event["index"] for event in events if "index" in event]
    assert numbers == sorted(numbers)
    assert sum(event["type"] == "content_block_stop" for event in events) == len(started)
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize(
    "text", ['<tool_call>{"name": "look", "arguments": {"at": 5, oops}}</tool_call>', "<tool_call>", "a < b <tool"]
)
async def test_what_is_no_call_is_text(
    client: httpx.AsyncClient, backend: ScriptedBackend, path: str, text: str
) -> None:
    backend.say(text)
    answer = await ask(client, chat() if path == CHAT else message(), path)
    said = answer["choices"][0]["message"]["content"] if path == CHAT else answer["content"][0]["text"]
    assert said == text
    await stream(client, chat() if path == CHAT else message(), path)


async def test_without_tools_or_with_none_chosen_calls_are_text_and_the_prompt_is_the_same(
    client: httpx.AsyncClient, backend: ScriptedBackend
) -> None:
    for body in (chat(tools=[]), chat(tool_choice="none"), chat()):
        message = (await ask(client, body))["choices"][0]["message"]
        assert (message["content"] == CALL) == ("tool_calls" not in message)
    assert backend.requests[1].token_ids.tolist() == backend.requests[2].token_ids.tolist()
    assert (await ask(client, {**chat(), "messages": [USER]}))["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("streams", [False, True])
async def test_one_call_at_a_time_ends_the_answer(
    client: httpx.AsyncClient, backend: ScriptedBackend, *, streams: bool
) -> None:
    backend.say(TWO + " more" * 50)
    if streams:
        chunks = await stream(client, chat(parallel_tool_calls=False))
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
        starts = [chunk for chunk in chunks if '"id": "call' in json.dumps(chunk["choices"][0]["delta"])]
        assert len(starts) == 1
    else:
        choice = (await ask(client, chat(parallel_tool_calls=False)))["choices"][0]
        assert names_of(choice["message"]["tool_calls"]) == ["look"]
        assert choice["finish_reason"] == "tool_calls"
    assert backend.live == set()
    assert len(backend.aborted) == 1


async def test_a_call_that_was_cut_is_no_call_in_a_whole_answer(client: httpx.AsyncClient) -> None:
    choice = (await ask(client, chat(max_tokens=25)))["choices"][0]
    assert (choice["finish_reason"], choice["message"].get("tool_calls")) == ("length", None)
    assert CALL.startswith(choice["message"]["content"])


async def test_a_conversation_with_calls_has_the_same_tokens_in_both_shapes(
    client: httpx.AsyncClient, backend: ScriptedBackend
) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": 5}'}}
    await ask(
        client,
        chat(
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": "4"},
        ),
    )
    use = {"type": "tool_use", "id": "a", "name": "look", "input": {"at": 5}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": "4"}
    await ask(client, message({"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}), MESSAGES)
    one, other = (request.token_ids.tolist() for request in backend.requests)
    assert one == other


@pytest.mark.parametrize("streams", [False, True])
async def test_a_call_that_comes_back_has_the_tokens_that_were_written_and_no_rule_fires(
    client: httpx.AsyncClient, backend: ScriptedBackend, tokenizer: Tokenizer, *, streams: bool
) -> None:
    await (stream if streams else ask)(client, chat())
    written = [*backend.requests[0].token_ids, *backend.reply[:-1]]
    returned = (await ask(client, chat()))["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": returned["tool_calls"][0]["id"], "content": "4"}
    answer = await client.post(CHAT, json=chat(returned, result))
    assert backend.requests[-1].token_ids[: len(written)].tolist() == written
    assert "rules=drop_null_message_fields" in answer.headers["x-prefixgate-cache"]  # its refusal
    tidy = {name: value for name, value in returned.items() if name != "refusal"}
    answer = await client.post(CHAT, json=chat(tidy, result))
    assert answer.headers["x-prefixgate-cache"].endswith("rules=none")


async def test_a_named_tool_that_is_none_of_them_is_named(client: httpx.AsyncClient) -> None:
    choice = {"type": "function", "function": {"name": "other"}}
    answer = await client.post(CHAT, json=chat(tool_choice=choice))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_choice")


@contextlib.asynccontextmanager
async def open_special(
    folder: Path, template: str, *texts: str, config: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[Any, Any]]:
    """A model whose marks are special tokens."""
    write_model(folder, template=template)
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    marks = ["<|end|>", "<|turn|>", "<|stop|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
    write_tokenizer(folder / "tokenizer.json", "bytes", special_tokens=[*marks])
    files = ModelFiles.from_folder(folder, "tiny")
    backend = ScriptedBackend(Tokenizer(files.tokenizer_file), *texts)
    assert EOS_ID == 0
    async with open_client(backend, files, **settings) as client:
        yield client, backend


async def test_marks_that_are_special_tokens_are_seen(tmp_path: Path) -> None:
    async with open_special(tmp_path, TEMPLATE, CALL, tool_template="hermes") as (client, backend):
        assert names_of((await ask(client, chat()))["choices"][0]["message"]["tool_calls"]) == ["look"]
        assert "<tool_call>" not in (await ask(client, chat(tools=[])))["choices"][0]["message"]["content"]
        await ask(client, chat(tool_choice="required"))
        grammar = backend.requests[-1].sampling.grammar
        assert "opening: <[5]>" in grammar


THINKING = TEMPLATE + "{# </think> #}"


@pytest.mark.parametrize("begun", [False, True])
async def test_thoughts_are_told_from_text(tmp_path: Path, *, begun: bool) -> None:
    template = THINKING.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}") if begun else THINKING
    said = ("" if begun else "<think>\n") + "Hm, so.\n</think>\n\nHello\n" + CALL
    async with open_special(tmp_path, template, said, tool_template="hermes") as (client, _):
        got = (await ask(client, chat()))["choices"][0]["message"]
        assert (got["reasoning_content"], got["reasoning"], got["content"]) == ("Hm, so.", "Hm, so.", "Hello")
        assert names_of(got["tool_calls"]) == ["look"]
        deltas = [chunk["choices"][0]["delta"] for chunk in await stream(client, chat())]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm, so."
        blocks = (await ask(client, message(), MESSAGES))["content"]
        assert [block["type"] for block in blocks] == ["text", "tool_use"]
        thinking = message(thinking={"type": "enabled", "budget_tokens": 1024})
        blocks = (await ask(client, thinking, MESSAGES))["content"]
        assert blocks[0] == {"type": "thinking", "thinking": "Hm, so.", "signature": ""}
        events = await stream(client, thinking, MESSAGES)
        started = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
        assert started == ["thinking", "text", "tool_use"]
        back = await client.post(
            CHAT, json=chat({"role": "assistant", "content": "Hello", "tool_calls": got["tool_calls"]}, USER)
        )
        assert back.status_code == 200
        assert "reasoning_restore" in back.headers["x-prefixgate-cache"]


async def test_reasoning_none_leaves_thoughts_in_the_text(tmp_path: Path) -> None:
    async with open_special(tmp_path, THINKING, "<think>Hm</think>x", reasoning="none") as (client, _):
        got = (await ask(client, {"model": "tiny", "messages": [USER]}))["choices"][0]["message"]
        assert "reasoning_content" not in got


async def test_a_call_is_remembered_under_the_id_that_a_rule_gives_it(
    backend: ScriptedBackend, model_files: ModelFiles
) -> None:
    rules = [
        replace(rule, default=Mode.ON) if rule.name == "canonical_call_ids" else rule for rule in built_in_rules().rules
    ]
    app = create_app(Settings(tool_template="hermes"), backend, model_files, rules=RuleRegistry(rules))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        returned = (await ask(client, chat()))["choices"][0]["message"]
        returned["tool_calls"][0]["id"] = "made-up"
        result = {"role": "tool", "tool_call_id": "made-up", "content": "4"}
        tidy = {name: value for name, value in returned.items() if name != "refusal"}
        answer = await client.post(CHAT, json=chat(tidy, result))
    assert answer.headers["x-prefixgate-cache"].endswith("rules=echo_repair")


STRICT = {"type": "function", "function": {**TOOL["function"], "strict": True}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("fields", "begins", "field"),
    [
        ({"response_format": FORMAT}, '{"grammars":[{"lark_grammar":"start: (@instead | opening', "response_format"),
        ({"response_format": FORMAT, "tool_choice": "required"}, "start: opening", "tools"),
        ({"response_format": FORMAT, "tool_choice": "none"}, '{"grammars":[{"json_schema"', "response_format"),
        ({"structured_outputs": {"regex": "a+"}}, "start: /a+/", "structured_outputs"),
        ({"tools": [STRICT, OTHER]}, "start: (before", "tools"),
        ({"tools": [STRICT], "tool_choice": "none"}, None, "grammar"),
        ({}, None, "grammar"),
    ],
)
async def test_what_answers_are_held_to(
    client: httpx.AsyncClient, backend: ScriptedBackend, fields: dict[str, Any], begins: str | None, field: str
) -> None:
    await ask(client, chat(**fields))
    sampling = backend.requests[-1].sampling
    assert (sampling.grammar is None) == (begins is None)
    assert (sampling.grammar or "").startswith(begins or "")
    assert sampling.grammar_field.startswith(field)


async def test_strict_tools_are_held_to_in_every_endpoint(client: httpx.AsyncClient, backend: ScriptedBackend) -> None:
    await ask(client, chat(tools=[STRICT]))
    wanted = backend.requests[-1].sampling.grammar
    tool = {"name": "look", "description": "Looks.", "input_schema": SCHEMA, "strict": True}
    await ask(client, message(tools=[tool]), MESSAGES)
    assert backend.requests[-1].sampling.grammar == wanted
    body = {"model": "tiny", "input": "hi", "tools": [{"type": "function", **STRICT["function"]}]}
    await ask(client, body, "/v1/responses")
    assert backend.requests[-1].sampling.grammar == wanted
