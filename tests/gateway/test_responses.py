"""OpenAI's Responses: what is made of a body, and the shapes of answers and events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.answer_pieces import AnswerEnd, CallArguments, CallStart, Piece, Text, Thought, gather
from gateway.backends.base import Admission
from gateway.errors import InvalidRequestError
from gateway.responses_content import read_conversation
from gateway.responses_request import parse_responses_request
from gateway.responses_wire import ResponsesWire
from gateway.tokenizer import Tokenizer
from gateway.wire import AnswerHead
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.fake_control import BLOCK_SIZE
from tests.gateway.support.tiny_model import EOS_ID
from tests.gateway.test_bad_input import assert_error, nested

PATH = "/v1/responses"
REPLY = "hello world, over the lazy dog"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def ask(given: Any = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "instructions": "You are helpful.", "input": given, **fields}


def events(frames: str) -> list[dict[str, Any]]:
    """Read frames, and hold each event to the SDK's model of it and to its number."""
    got = []
    for number, frame in enumerate(frames.removesuffix("\n\n").split("\n\n")):
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        EVENT.validate_python(event)
        got.append(event)
    return got


def kinds(got: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in got]


async def test_answer_in_one_piece(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    answer = await client.post(PATH, json=ask(metadata={"a": "b"}, temperature=0.5, user="u", max_output_tokens=40))
    body = answer.json()
    Response.model_validate(body)
    request = backend.requests[0]
    assert (request.sampling.max_tokens, request.sampling.temperature) == (40, 0.5)
    assert body["id"] == request.request_id
    assert body["id"].startswith("resp_")
    assert (body["object"], body["status"], body["incomplete_details"], body["error"]) == (
        "response",
        "completed",
        None,
        None,
    )
    (item,) = body["output"]
    assert item.pop("id").startswith("msg_")
    assert item == {
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": REPLY, "annotations": [], "logprobs": []}],
    }
    num = len(request.token_ids)
    assert body["usage"] == {
        "input_tokens": num,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": num // BLOCK_SIZE * BLOCK_SIZE},
        "output_tokens": len(backend.reply),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": num + len(backend.reply),
    }
    echoed = {"metadata": {"a": "b"}, "temperature": 0.5, "top_p": 1.0, "user": "u", "store": False, "tools": []}
    echoed |= {"instructions": "You are helpful.", "tool_choice": "auto", "parallel_tool_calls": True}
    assert {name: body[name] for name in echoed} == echoed


async def test_stream_events(client: httpx.AsyncClient) -> None:
    whole = (await client.post(PATH, json=ask())).json()
    answer = await client.post(PATH, json=ask(stream=True, stream_options={"include_obfuscation": False}))
    got = events(answer.text)
    assert kinds(got)[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds(got)[4:-4]) == {"output_text.delta"}
    assert kinds(got)[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert "".join(event["delta"] for event in got if event["type"].endswith("text.delta")) == REPLY
    assert got[0]["response"]["output"] == []
    assert (got[0]["response"]["status"], "usage" in got[0]["response"]) == ("in_progress", False)
    response = got[-1]["response"]
    assert response["usage"]["input_tokens_details"]["cached_tokens"] > 0
    assert response["output"] == [got[-2]["item"]]
    different = {"id", "created_at", "usage", "output"}
    assert {name: value for name, value in response.items() if name not in different} == {
        name: value for name, value in whole.items() if name not in different
    }
    assert [part for item in response["output"] for part in item["content"]] == whole["output"][0]["content"]


@pytest.mark.parametrize("stream", [False, True])
async def test_answer_that_is_cut_says_so(client: httpx.AsyncClient, stream: bool) -> None:
    answer = await client.post(PATH, json=ask(max_output_tokens=2, stream=stream))
    body = events(answer.text)[-1]["response"] if stream else answer.json()
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["output"][0]["status"] == "incomplete"
    assert body["usage"]["output_tokens"] == 2


async def test_answer_without_text_has_no_items(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    backend.reply = [EOS_ID]
    assert (await client.post(PATH, json=ask())).json()["output"] == []
    assert kinds(events((await client.post(PATH, json=ask(stream=True))).text)) == [
        "created",
        "in_progress",
        "completed",
    ]


async def test_logprobs_where_they_are_asked_for(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    asked = ask(include=["message.output_text.logprobs"], top_logprobs=2)
    entries = (await client.post(PATH, json=asked)).json()["output"][0]["content"][0]["logprobs"]
    assert "".join(entry["token"] for entry in entries) == REPLY
    assert {len(entry["top_logprobs"]) for entry in entries} == {2}
    got = events((await client.post(PATH, json=asked | {"stream": True})).text)
    streamed = [entry for event in got if event["type"].endswith("text.delta") for entry in event["logprobs"]]
    assert streamed == entries == got[-1]["response"]["output"][0]["content"][0]["logprobs"]


HEAD = AnswerHead("resp_ab", 5, "tiny", Admission(20, 8, {}, "diverged"), 8, {})
ENDED = AnswerEnd("stop", None, 1)
PIECES: list[Piece] = [
    Thought("Hm"),
    Thought("."),
    Text("Let me "),
    Text("look."),
    CallStart(0, "call_0", "look"),
    CallArguments(0, '{"at":'),
    CallArguments(0, "5}"),
    CallStart(1, "call_1", "find"),
    CallArguments(1, "{}"),
]


def frames_of(pieces: Sequence[Piece], end: AnswerEnd) -> bytes:
    wire = ResponsesWire(HEAD, parse_responses_request(json.dumps(ask()).encode()).echo)
    frames = wire.opening() + wire.first(0, pieces[0]) + b"".join(wire.piece(0, piece) for piece in pieces)
    return frames + wire.end(0, end) + wire.close(end.num_tokens)


def streamed(pieces: Sequence[Piece], end: AnswerEnd) -> list[dict[str, Any]]:
    return events(frames_of(pieces, end).decode())


def test_thoughts_and_calls_are_items_of_their_own() -> None:
    end = AnswerEnd("tool_calls", None, 9)
    got = streamed(PIECES, end)
    text = ["output_item.added", "content_part.added", "{}.delta", "{}.delta", "{}.done", "content_part.done"]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert kinds(got) == [
        *("created", "in_progress"),
        *(kind.format("reasoning_text") for kind in text),
        "output_item.done",
        *(kind.format("output_text") for kind in text),
        "output_item.done",
        *(call[:1] + call[1:2] + call[1:]),
        *call,
        "completed",
    ]
    output = got[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert len({item["id"] for item in output}) == 4
    assert output == [event["item"] for event in got if event["type"] == "response.output_item.done"]
    assert all(output[event["output_index"]]["id"] == event["item_id"] for event in got if "item_id" in event)
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert output[1]["content"][0]["text"] == "Let me look."
    assert [(item["call_id"], item["name"], item["arguments"]) for item in output[2:]] == [
        ("call_0", "look", '{"at":5}'),
        ("call_1", "find", "{}"),
    ]
    wire = ResponsesWire(HEAD, {})
    assert json.loads(wire.whole([gather(PIECES, end)]))["output"] == output


def test_answer_comes_back_as_the_turn_that_it_was() -> None:
    output = streamed(PIECES, AnswerEnd("tool_calls", None, 9))[-1]["response"]["output"]
    results = [{"type": "function_call_output", "call_id": f"call_{n}", "output": "4"} for n in (0, 1)]
    conversation = read_conversation({"input": [{"role": "user", "content": "hi"}, *output, *results]})
    assert [message.role for message in conversation.messages] == ["user", "assistant", "tool", "tool"]
    turn = conversation.messages[1]
    assert turn.content == ({"type": "text", "text": "Let me look."},)
    assert turn.fields["reasoning_content"] == "Hm."
    assert [call["function"]["arguments"] for call in turn.fields["tool_calls"]] == ['{"at":5}', "{}"]


def test_turns_are_told_apart() -> None:
    said = {"role": "assistant", "content": "a"}
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    thought = {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]}
    sealed = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "s"}]}
    cases = [
        ([said, said], 2),
        ([said, thought, said], 2),
        ([call, said], 2),
        ([thought, thought, said, call, call], 1),
        ([said, sealed, call], 1),
        ([sealed], 0),
        ([thought], 1),
    ]
    for items, num_turns in cases:
        assert len(read_conversation({"input": items}).messages) == num_turns, items


async def test_engine_that_dies_while_streaming_fails_the_response(
    client: httpx.AsyncClient, backend: FakeBackend
) -> None:
    backend.fail_after = 2
    *_, failed, error = events((await client.post(PATH, json=ask(stream=True))).text)
    assert failed["type"] == "response.failed"
    assert (failed["response"]["status"], failed["response"]["error"]["message"]) == ("failed", "the engine died")
    assert failed["response"]["output"][0]["status"] == "incomplete"
    assert (error["type"], error["message"], error["code"]) == ("error", "the engine died", "engine_failed")


async def test_fields_that_tell_conversations_apart_reach_the_rules(client: httpx.AsyncClient) -> None:
    fields = {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "reasoning": {"effort": "low"}}
    kept = parse_responses_request(json.dumps(ask(**fields)).encode()).chat.conversation.fields
    assert kept == {
        "model": "tiny",
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "reasoning_effort": "low",
    }


async def test_answer_that_comes_back_has_the_tokens_that_were_written(
    client: httpx.AsyncClient, backend: FakeBackend, tokenizer: Tokenizer
) -> None:
    backend.reply = [*(token for char in "hello world" for token in tokenizer.encode(char).tolist()), EOS_ID]
    answer = (await client.post(PATH, json=ask())).json()
    again = ask([{"role": "user", "content": "hi"}, *answer["output"], {"role": "user", "content": "And?"}])
    await client.post(PATH, json=again)
    reply = [str(token) for token in backend.reply[:-1]]
    assert f" {' '.join(reply)} " in f" {' '.join(map(str, backend.requests[1].token_ids))} "


async def test_diagnostics_tell_what_changed(client: httpx.AsyncClient) -> None:
    first = (await client.post(PATH, json=ask("one"))).json()
    options = {"comparison_response_id": first["id"]}
    changed = ask("one", instructions="You are useless.", prompt_cache_options=options)
    said = (await client.post(PATH, json=changed)).json()["prompt_cache_diagnostics"]
    assert (said["type"], said["reason"]) == ("cache_miss", "input_changed")


async def test_unknown_fields_are_ignored(client: httpx.AsyncClient) -> None:
    for fields in ({"x_unknown": [1]}, {"store": False, "truncation": "disabled", "background": False}, {"tools": []}):
        assert (await client.post(PATH, json=ask(**fields))).status_code == 200


def item(**fields: Any) -> dict[str, Any]:
    return ask([fields])


TOOL = {"type": "function", "name": "f", "parameters": {}, "strict": False}
WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    # id: body, param, part of the message
    "no-input": ({"model": "tiny"}, "input", "missing"),
    "no-model": ({"input": "hi"}, "model", "missing"),
    "input-number": (ask(5), "input", "a string or an array"),
    "input-empty": (ask([]), "input", "1 to"),
    "input-too-many": (ask([{"role": "user", "content": "hi"}] * 32_769), "input", "1 to 32768"),
    "item-string": (ask(["hi"]), "input[0]", "an object"),
    "item-reference": (item(type="item_reference", id="msg_1"), "input[0].type", "stores no items"),
    "item-of-theirs": (item(type="web_search_call", id="ws_1"), "input[0].type", "runs no tools"),
    "role": (item(role="critic", content="hi"), "input[0].role", "one of"),
    "content": (item(role="user", content=None), "input[0].content", "a string or an array"),
    "content-empty": (item(role="user", content=[]), "input[0].content", "1 to"),
    "content-too-many": (
        item(role="user", content=[{"type": "input_text", "text": ""}] * 1025),
        "input[0].content",
        "1 to 1024",
    ),
    "image": (item(role="user", content=[{"type": "input_image"}]), "input[0].content[0].type", "no images"),
    "file": (item(role="user", content=[{"type": "input_file"}]), "input[0].content[0].type", "files"),
    "no-text": (item(role="user", content=[{"type": "input_text"}]), "input[0].content[0].text", "a string"),
    "call-without-id": (item(type="function_call", name="f", arguments="{}"), "input[0].call_id", "a string"),
    "call-without-name": (item(type="function_call", call_id="1", arguments="{}"), "input[0].name", "a string"),
    "call-deep": (
        item(type="function_call", call_id="1", name="f", arguments="[" * 65 + "]" * 65),
        "input[0].arguments",
        "levels",
    ),
    "result-without-id": (item(type="function_call_output", output="4"), "input[0].call_id", "a string"),
    "result-number": (item(type="function_call_output", call_id="1", output=4), "input[0].output", "a string or"),
    "reasoning": (item(type="reasoning", content=[{"type": "text"}]), "input[0].content[0].type", "reasoning_text"),
    "instructions": (ask(instructions=[]), "instructions", "a string"),
    "tools-of-theirs": (ask(tools=[{"type": "web_search"}]), "tools[0].type", "runs no tools of its own"),
    "tools-unnamed": (ask(tools=[{"type": "function"}]), "tools[0].name", "a string"),
    "tools-too-many": (ask(tools=[TOOL] * 1025), "tools", "0 to 1024"),
    "tool-name-long": (ask(tools=[{**TOOL, "name": "x" * 257}]), "tools[0].name", "1 to 64"),
    "tool-parameters": (ask(tools=[{**TOOL, "parameters": [1]}]), "tools[0].parameters", "wanted an object"),
    "tool-deep": (ask(tools=[{**TOOL, "parameters": {"a": nested(100)}}]), "tools[0]", "levels"),
    "tools-for-a-template-without": (ask(tools=[TOOL]), "tools", "does not render"),
    "tool-choice": (
        ask(tool_choice={"type": "mcp"}),
        "tool_choice.type",
        "wanted function, or in place of the object auto",
    ),
    "store": (ask(store=True), "store", "stores no responses"),
    "previous": (ask(previous_response_id="resp_1"), "previous_response_id", "whole conversation"),
    "conversation": (ask(conversation="conv_1"), "conversation", "whole conversation"),
    "background": (ask(background=True), "background", "in the background"),
    "include": (ask(include=["file_search_call.results"]), "include[0]", "one of"),
    "include-many": (ask(include=["reasoning.encrypted_content"] * 17), "include", "0 to 16"),
    "metadata": (ask(metadata={"a": 1}), "metadata", "strings"),
    "metadata-many": (ask(metadata={str(n): "" for n in range(65)}), "metadata", "at most 64"),
    "text": (ask(text="plain"), "text", "an object"),
    "reasoning-effort": (ask(reasoning={"effort": 5}), "reasoning.effort", "a string"),
    "max-output-tokens": (ask(max_output_tokens=0), "max_output_tokens", "from 1 to"),
    "temperature": (ask(temperature=3), "temperature", "0 to 2"),
    "top-logprobs": (ask(top_logprobs=21), "top_logprobs", "0 to 20"),
    "too-long": (ask(max_output_tokens=1000), "max_output_tokens", "the model takes"),
    "far-too-long": (ask("hello " * 600), "input", "the model takes"),
}


@pytest.mark.parametrize(("body", "param", "says"), WRONG.values(), ids=WRONG)
async def test_wrong_bodies_are_refused(client: httpx.AsyncClient, body: dict[str, Any], param: str, says: str) -> None:
    answer = await client.post(PATH, json=body)
    message = answer.json()["error"]["message"]
    assert_error(answer, 400, code="context_length_exceeded" if "the model takes" in message else None, param=param)
    assert message.startswith(param)
    assert says in message


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, width=16) | st.sampled_from(["", "a"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "name"]), inner, max_size=2),
    max_leaves=5,
)
_some_item = st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "reasoning", "function_call", "function_call_output"])},
    optional={
        "role": st.sampled_from(["user", "assistant"]) | _json,
        "content": st.lists(st.fixed_dictionaries({"type": st.just("input_text"), "text": _json}), max_size=2) | _json,
        **dict.fromkeys(("call_id", "name", "arguments", "output"), st.just("a") | _json),
    },
)
_some_tool = st.fixed_dictionaries({"type": st.just("function"), "name": st.just("f") | _json}, optional={"x": _json})
_some_body = st.fixed_dictionaries(
    {"model": st.just("tiny"), "input": st.lists(_some_item, max_size=3) | _json},
    optional={
        "tools": st.lists(_some_tool, max_size=2) | _json,
        "text": st.fixed_dictionaries({"format": _json}) | _json,
        **dict.fromkeys(("reasoning", "include", "tool_choice", "metadata", "instructions", "prompt", "user"), _json),
        **dict.fromkeys(("top_logprobs", "temperature", "store", "stream", "stream_options", "truncation"), _json),
    },
)


@given(body=_some_body)
def test_whatever_comes_is_understood_or_refused(body: dict[str, Any]) -> None:
    try:
        request = parse_responses_request(json.dumps(body).encode())
    except InvalidRequestError:
        return
    Response.model_validate(json.loads(ResponsesWire(HEAD, request.echo).whole([gather([], ENDED)])))
