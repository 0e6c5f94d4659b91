"""One chat in the forms of three endpoints: every form becomes the same conversation, and the same tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway import messages_content, responses_content
from gateway.chat_request import conversation_of
from tests.gateway.conftest import open_client
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.tiny_model import write_model

Json = dict[str, Any]


@dataclass
class Call:
    call_id: str
    arguments: Json
    result: list[str] | None
    """None: nobody answered."""


@dataclass
class Exchange:
    user: list[str]
    thought: str | None
    said: list[str] | None
    calls: list[Call]


@dataclass
class Chat:
    system: str
    exchanges: list[Exchange]
    tools: list[tuple[str, str, Json]]


def as_chat(chat: Chat) -> Json:
    messages: list[Json] = [{"role": "system", "content": chat.system}] if chat.system else []
    for exchange in chat.exchanges:
        messages.append({"role": "user", "content": _parts(exchange.user)})
        turn: Json = {"role": "assistant", "content": None if exchange.said is None else _parts(exchange.said)}
        if exchange.calls:
            turn["tool_calls"] = [
                {"id": call.call_id, "type": "function", "function": {"name": "look", "arguments": _json(call)}}
                for call in exchange.calls
            ]
        if exchange.thought is not None:
            turn["reasoning_content"] = exchange.thought
        if len(turn) > 2 or exchange.said is not None:
            messages.append(turn)
        messages += [
            {"role": "tool", "tool_call_id": call.call_id, "content": _parts(call.result)}
            for call in exchange.calls
            if call.result is not None
        ]
    return {"messages": messages, "tools": [_tool("parameters", *tool) for tool in chat.tools]}


def as_messages(chat: Chat) -> Json:
    messages: list[Json] = []
    for exchange in chat.exchanges:
        messages.append({"role": "user", "content": _parts(exchange.user)})
        turn: list[Json] = []
        if exchange.thought is not None:
            turn.append({"type": "thinking", "thinking": exchange.thought, "signature": "s"})
        turn += _parts(exchange.said or [])
        for call in exchange.calls:
            turn.append({"type": "tool_use", "id": call.call_id, "name": "look", "input": call.arguments})
        if turn:
            messages.append({"role": "assistant", "content": turn})
        results = [
            {"type": "tool_result", "tool_use_id": call.call_id, "content": _parts(call.result)}
            for call in exchange.calls
            if call.result is not None
        ]
        if results:
            messages.append({"role": "user", "content": results})
    tools = [_tool("input_schema", *tool)["function"] for tool in chat.tools]
    return {"messages": messages, "tools": tools, **({"system": chat.system} if chat.system else {})}


def as_responses(chat: Chat) -> Json:
    items: list[Json] = []
    for exchange in chat.exchanges:
        items.append({"role": "user", "content": _parts(exchange.user, "input_text")})
        if exchange.thought is not None:
            thought = {"type": "reasoning_text", "text": exchange.thought}
            items.append({"type": "reasoning", "id": "rs_1", "summary": [], "content": [thought]})
        if exchange.said is not None:
            said = [part | {"annotations": [], "logprobs": []} for part in _parts(exchange.said, "output_text")]
            items.append(
                {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": said}
            )
        items += [
            {"type": "function_call", "id": "fc_1", "call_id": call.call_id, "name": "look", "arguments": _json(call)}
            for call in exchange.calls
        ]
        items += [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": _parts(call.result, "input_text"),
            }
            for call in exchange.calls
            if call.result is not None
        ]
    tools = [{"type": "function", **_tool("parameters", *tool)["function"]} for tool in chat.tools]
    return {"input": items, "tools": tools, "instructions": chat.system or None}


def _parts(texts: list[str], kind: str = "text") -> list[Json]:
    return [{"type": kind, "text": text} for text in texts]


def _json(call: Call) -> str:
    return orjson.dumps(call.arguments).decode()


def _tool(schema: str, name: str, description: str, parameters: Json) -> Json:
    return {"type": "function", "function": {"name": name, "description": description, schema: parameters}}


_texts = st.text(max_size=8)
_some = st.lists(_texts, min_size=1, max_size=3)
_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | _texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_texts, inner, max_size=2),
    max_leaves=4,
)
_objects = st.dictionaries(_texts, _values, max_size=2)
_calls = st.builds(Call, st.sampled_from(["a", "b", "call_1"]), _objects, st.none() | _some)
chats = st.builds(
    Chat,
    _texts,
    st.lists(
        st.builds(Exchange, _some, st.none() | _texts, st.none() | _some, st.lists(_calls, max_size=3)),
        min_size=1,
        max_size=3,
    ),
    st.lists(
        st.tuples(st.sampled_from(["look", "find"]), _texts, _objects), max_size=2, unique_by=lambda tool: tool[0]
    ),
)


@given(chat=chats)
def test_every_form_becomes_the_same_conversation(chat: Chat) -> None:
    wanted = conversation_of(as_chat(chat))
    for form, read in (
        (as_messages(chat), messages_content.read_conversation),
        (as_responses(chat), responses_content.read_conversation),
    ):
        got = read({name: value for name, value in form.items() if value is not None})
        assert got.messages == wanted.messages
        assert got.tools == wanted.tools


async def test_every_form_has_the_same_tokens(backend: FakeBackend, tmp_path: Path) -> None:
    backend.max_model_len = 4096
    chat = Chat(
        "You are kind.  \r\nBe brief. ",
        [
            Exchange(["What is", "there?"], "Hm.", ["Let me look."], [Call("a", {"at": 5}, ["4"])]),
            Exchange(["And?"], None, None, []),
        ],
        [("look", "Looks.", {"type": "object", "properties": {"at": {"type": "integer"}}})],
    )
    forms = {
        "/v1/chat/completions": as_chat(chat),
        "/v1/messages": as_messages(chat) | {"max_tokens": 9},
        "/v1/responses": as_responses(chat),
    }
    async with open_client(backend, write_model(tmp_path), tool_template="hermes") as client:
        for path, form in forms.items():
            answer = await client.post(path, json={"model": "tiny", **form})
            assert answer.status_code == 200, answer.text
    first, *others = [request.token_ids.tolist() for request in backend.requests]
    assert len(others) == 2
    assert all(tokens == first for tokens in others)
