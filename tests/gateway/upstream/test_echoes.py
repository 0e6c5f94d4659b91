"""Answers that come back changed are put back as they were, where the operator asks for it, and only there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.normalize.rules import built_in_rules
from gateway.upstream.app import upstream_rules
from gateway.upstream.spoken import SpokenTurn
from tests.gateway.upstream.mock import BODY, MockUpstream, proxy_of

CALL = {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
DELTAS: list[dict[str, Any]] = [
    {"role": "assistant", "content": None},
    {"reasoning_content": "hm"},
    {"tool_calls": [{"index": 0, "id": "call-1", "type": "function", "function": {"name": "look", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
]


def streamed(*deltas: dict[str, Any], reason: str = "stop") -> bytes:
    choices = [{"index": 0, "delta": delta} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": reason})
    return b"".join(b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode() for choice in choices)


def turn_two(assistant: dict[str, Any], *results: dict[str, Any]) -> dict[str, Any]:
    return {**BODY, "messages": [*BODY["messages"], assistant, *results, {"role": "user", "content": "on"}]}


async def second_body(answer: bytes, second: dict[str, Any], *, is_stream: bool, remembers: bool) -> dict[str, Any]:
    """What the upstream gets of a second turn."""
    kind = b"text/event-stream" if is_stream else b"application/json"
    upstream = MockUpstream(pieces=[answer], content_type=kind)
    async with proxy_of(upstream, rules=built_in_rules() if remembers else upstream_rules()) as proxy:
        await proxy.chat({**BODY, "stream": is_stream})
        await proxy.chat(second)
    return dict(json.loads(upstream.bodies[1]))


@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_trimmed_text_is_put_back_where_it_is_asked_for(is_stream: bool, remembers: bool) -> None:
    message = {"role": "assistant", "content": "Well then.\n"}
    whole = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
    answer = streamed({"content": "Well "}, {"content": "then.\n"}) + b"data: [DONE]\n\n" if is_stream else whole
    second = turn_two({"role": "assistant", "content": "Well then."})
    sent = await second_body(answer, second, is_stream=is_stream, remembers=remembers)
    assert sent["messages"][2]["content"] == ("Well then.\n" if remembers else "Well then.")


async def test_calls_are_put_back_as_they_were_streamed() -> None:
    changed = {**CALL, "id": "other", "function": {"name": "look", "arguments": '{"a":1}'}}
    second = turn_two(
        {"role": "assistant", "content": None, "tool_calls": [changed]},
        {"role": "tool", "tool_call_id": "other", "content": "found"},
    )
    sent = await second_body(streamed(*DELTAS, reason="tool_calls"), second, is_stream=True, remembers=True)
    assert sent["messages"][2] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [CALL],
        "reasoning_content": "hm",
    }
    assert sent["messages"][3]["tool_call_id"] == "call-1"


def test_a_turn_in_one_piece_and_in_many_is_the_same() -> None:
    many, one = SpokenTurn(), SpokenTurn()
    for delta in DELTAS:
        many.add(delta)
    one.add({"content": None, "reasoning_content": "hm", "tool_calls": [CALL]})
    assert many.message() == one.message()


def test_what_is_no_turn_adds_nothing() -> None:
    turn = SpokenTurn()
    turn.add({"content": 7, "tool_calls": {"index": 0}})
    turn.add({"tool_calls": [3, {"index": "x"}]})
    assert turn.message().content == ""
    assert turn.message().fields == {}
