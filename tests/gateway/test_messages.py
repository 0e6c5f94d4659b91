"""Anthropic's endpoint: what it makes of a body, and the bytes of its answers."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.answer_pieces import AnswerEnd, CallArguments, CallStart, Text, gather
from gateway.backends.base import Admission, BackendOverloadedError
from gateway.chat_request import conversation_of
from gateway.messages_content import read_conversation
from gateway.messages_wire import MessagesWire
from gateway.model_files import ModelFiles
from gateway.tokenizer import Tokenizer
from gateway.wire import AnswerHead
from tests.gateway.conftest import open_client
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.fake_control import BLOCK_SIZE
from tests.gateway.support.tiny_model import EOS_ID, write_model

PATH = "/v1/messages"
COUNT = f"{PATH}/count_tokens"
REPLY = "hello world, over the lazy dog"
SYSTEM = "You are a helpful assistant that answers every question."
SCHEMA = {"type": "object", "properties": {"at": {"type": "integer"}}}


def message(content: Any = "hi", **fields: Any) -> dict[str, Any]:
    return {
        "model": "tiny",
        "max_tokens": 50,
        "system": SYSTEM,
        "messages": [{"role": "user", "content": content}],
        **fields,
    }


def events(answer: httpx.Response) -> list[tuple[str, Any]]:
    frames = answer.text.split("\n\n")
    assert frames.pop() == ""
    lines = [frame.split("\n") for frame in frames]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in lines]


async def test_answer_in_one_piece(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    answer = await client.post(PATH, json=message())
    body = answer.json()
    assert answer.status_code == 200
    assert body.pop("id") == backend.requests[0].request_id
    num_prompt_tokens = len(backend.requests[0].token_ids)
    written = num_prompt_tokens // BLOCK_SIZE * BLOCK_SIZE
    assert backend.requests[0].request_id.startswith("msg_")
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": REPLY}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": num_prompt_tokens - written,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": 0,
            "output_tokens": len(backend.reply),
            "cache_creation": {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0},
            "service_tier": "standard",
        },
    }


def test_text_behind_a_call_stays_behind_it() -> None:
    said = [Text("a"), CallStart(0, "call_0", "look"), CallArguments(0, "{}"), Text("<tool_call>"), Text(' {"na')]
    answer = gather(said, AnswerEnd("length", None, 9))
    wire = MessagesWire(AnswerHead("msg_1", 5, "tiny", Admission(20, 8, {}, "diverged"), 8, {}))
    content = json.loads(wire.whole([answer]))["content"]
    assert [block.get("text", block["type"]) for block in content] == ["a", "tool_use", '<tool_call> {"na']
    assert answer.text == 'a<tool_call> {"na'


async def test_stream_events(client: httpx.AsyncClient) -> None:
    whole = (await client.post(PATH, json=message("one"))).json()
    answer = await client.post(PATH, json=message("one", stream=True))
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    got = events(answer)
    assert all(name == event["type"] for name, event in got)
    names = [name for name, _ in got]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert set(names[3:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(event["delta"]["text"] for name, event in got if name == "content_block_delta") == REPLY
    start, delta = got[0][1]["message"], got[-2][1]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 0)
    assert delta["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert delta["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert start["usage"]["cache_read_input_tokens"] > 0
    counted = {name: start["usage"][name] for name in delta["usage"]}
    assert counted | {"output_tokens": delta["usage"]["output_tokens"]} == delta["usage"]


@pytest.mark.parametrize(
    ("fields", "reason", "stop", "text"),
    [
        ({"max_tokens": 2}, "max_tokens", None, None),
        ({"stop_sequences": ["nothing", ", over"]}, "stop_sequence", ", over", "hello world"),
        ({"stop_sequences": []}, "end_turn", None, REPLY),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_reason_of_the_end(
    client: httpx.AsyncClient,
    backend: FakeBackend,
    fields: dict[str, Any],
    reason: str,
    stop: str | None,
    text: str | None,
    stream: bool,
) -> None:
    backend.batch_size = 100
    answer = await client.post(PATH, json=message(stream=stream, **fields))
    if stream:
        got = events(answer)
        end = got[-2][1]["delta"]
        said = "".join(event["delta"]["text"] for name, event in got if name == "content_block_delta")
    else:
        end = answer.json()
        said = end["content"][0]["text"]
    assert (end["stop_reason"], end["stop_sequence"]) == (reason, stop)
    assert text is None or said == text


async def test_max_tokens_beyond_the_room_means_all_of_it(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    backend.reply, backend.ends = [50] * 600, False
    body = (await client.post(PATH, json=message(max_tokens=64_000))).json()
    room = backend.max_model_len - len(backend.requests[0].token_ids)
    assert backend.requests[0].sampling.max_tokens == body["usage"]["output_tokens"] == room
    assert body["stop_reason"] == "max_tokens"


def test_effort_is_that_of_the_chat() -> None:
    assert read_conversation(message(output_config={"effort": "low"})).fields["reasoning_effort"] == "low"


def test_user_id_is_the_user_of_the_chat() -> None:
    assert read_conversation(message(metadata={"user_id": "u"})).fields == {"model": "tiny", "user": "u"}
    assert read_conversation(message(metadata={})).fields == {"model": "tiny"}


async def test_answer_without_text_has_no_content(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    backend.reply = [EOS_ID]
    assert (await client.post(PATH, json=message())).json()["content"] == []
    assert [name for name, _ in events(await client.post(PATH, json=message(stream=True)))] == [
        "message_start",
        "ping",
        "message_delta",
        "message_stop",
    ]


async def test_both_providers_endpoints_share_a_prompt(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "hi"}]
    first = (await client.post("/v1/chat/completions", json={"model": "tiny", "messages": messages})).json()["usage"]
    usage = (await client.post(PATH, json=message())).json()["usage"]
    assert list(backend.requests[0].token_ids) == list(backend.requests[1].token_ids)
    assert usage["cache_read_input_tokens"] > 0
    kinds = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert sum(usage[kind] for kind in kinds) == first["prompt_tokens"]


async def test_count_is_that_of_the_prompt(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    body = message([{"type": "text", "text": "one\r\n", "cache_control": {"type": "ephemeral"}}])
    counted = {name: value for name, value in body.items() if name != "max_tokens"}
    answer = await client.post(COUNT, json=counted)
    await client.post(PATH, json=body)
    assert answer.json() == {"input_tokens": len(backend.requests[0].token_ids)}
    long = await client.post(COUNT, json={**counted, "system": "hello " * 600})
    assert long.json()["input_tokens"] > 512


async def test_turns_with_tools_become_those_of_openai(backend: FakeBackend, tmp_path: Any) -> None:
    backend.max_model_len = 4096
    calling = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "a", "name": "look", "input": {"at": 5}, "cache_control": {"type": "ephemeral"}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "4"}], "is_error": False},
        {"type": "tool_result", "tool_use_id": "b", "is_error": True},
        {"type": "text", "text": "And?"},
    ]
    tool = {"name": "look", "description": "Looks.", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}
    body = message(tools=[tool], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    body["messages"] += [{"role": "assistant", "content": calling}, {"role": "user", "content": results}]
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at":5}'}}
    wanted = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "Let me look."}],
            "tool_calls": [call],
            "reasoning_content": "Hm.",
        },
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "4"}]},
        {"role": "tool", "tool_call_id": "b", "content": "", "is_error": True},
        {"role": "user", "content": [{"type": "text", "text": "And?"}]},
    ]
    function = {"name": "look", "description": "Looks.", "parameters": SCHEMA}
    twin = conversation_of({"messages": wanted, "tools": [{"type": "function", "function": function}]})
    got = read_conversation(body)
    assert (got.messages, got.tools) == (twin.messages, twin.tools)
    async with open_client(backend, write_model(tmp_path), tool_template="hermes") as client:
        assert (await client.post(PATH, json=body)).status_code == 200
        assert (await client.post(COUNT, json=body)).json()["input_tokens"] == len(backend.requests[0].token_ids)


async def test_answer_that_comes_back_has_the_tokens_that_were_written(
    client: httpx.AsyncClient, backend: FakeBackend, tokenizer: Tokenizer
) -> None:
    backend.reply = [*(token for char in "hello world" for token in tokenizer.encode(char).tolist()), EOS_ID]
    answer = (await client.post(PATH, json=message())).json()
    body = message()
    body["messages"] += [
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": [{"type": "text", "text": "And?"}]},
    ]
    await client.post(PATH, json=body)
    reply = [str(token) for token in backend.reply[:-1]]
    assert f" {' '.join(reply)} " in f" {' '.join(map(str, backend.requests[1].token_ids))} "


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (BackendOverloadedError("too little memory"), 503, "overloaded_error"),
        (RuntimeError("what?"), 500, "api_error"),
    ],
)
async def test_errors_of_the_engine(
    client: httpx.AsyncClient, backend: FakeBackend, error: Exception, status: int, kind: str
) -> None:
    backend.reject = error
    assert_error(await client.post(PATH, json=message()), status, kind)


async def test_engine_that_dies_while_streaming_ends_in_an_error_event(
    client: httpx.AsyncClient, backend: FakeBackend
) -> None:
    backend.fail_after = 2
    name, event = events(await client.post(PATH, json=message(stream=True)))[-1]
    assert (name, event["type"], event["error"]["type"]) == ("error", "error", "api_error")
    assert event["error"]["message"] == "the engine died"


async def test_errors_have_anthropics_shape_wherever_they_come_from(
    client: httpx.AsyncClient, backend: FakeBackend, model_files: ModelFiles
) -> None:
    assert_error(await client.post(PATH, json=message(model="other")), 404, "not_found_error")
    assert_error(await client.post(PATH, content=b" " * 10_000_001), 413, "request_too_large")
    assert_error(await client.get(PATH), 405, "invalid_request_error")
    assert_error(await client.post(f"{PATH}/batches"), 404, "not_found_error")
    async with open_client(backend, model_files, host="0.0.0.0") as public:
        for path in (PATH, COUNT):
            assert_error(await public.post(path, json=message()), 401, "authentication_error")
    backend.is_up = False
    down = await client.post(PATH, json=message())
    assert_error(down, 503, "api_error")
    assert down.headers["retry-after"]


async def test_diagnostics_tell_what_changed(client: httpx.AsyncClient) -> None:
    first = (await client.post(PATH, json=message("one", diagnostics={"previous_message_id": None}))).json()
    assert first["diagnostics"] is None
    changed = message("one", system=f"{SYSTEM[:-1]}!", diagnostics={"previous_message_id": first["id"]})
    second = await client.post(PATH, json=changed)
    reason = second.json()["diagnostics"]["cache_miss_reason"]
    assert reason["type"] == "system_changed"
    streamed = events(await client.post(PATH, json={**changed, "stream": True}))
    assert streamed[0][1]["message"]["diagnostics"] is None


def assert_error(answer: httpx.Response, status: int, kind: str) -> None:
    body = answer.json()
    assert (answer.status_code, body["type"], body["error"]["type"]) == (status, "error", kind)
    assert body.keys() == {"type", "error"}
    assert body["error"].keys() == {"type", "message"}
    assert body["error"]["message"]
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
