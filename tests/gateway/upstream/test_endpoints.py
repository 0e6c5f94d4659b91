"""The endpoints beside the chat: what crosses, what the rules change there, what is read, and errors in the right shape."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.endpoints import ENDPOINTS
from gateway.upstream.usage import AnswerReader
from tests.gateway.upstream.mock import ANSWER, MockUpstream, proxy_of
from tests.gateway.upstream.test_proxy import OneKey, metrics

MESSAGES = "/v1/messages"
BILLING = "x-anthropic-billing-header: cc_version=2.1.37.abc; cc_entrypoint=cli; cch=%05x;"


def events(*values: dict[str, Any]) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (v["type"].encode(), json.dumps(v).encode()) for v in values)


MESSAGE_STREAM = events(
    {
        "type": "message_start",
        "message": {"id": "msg_1", "usage": {"input_tokens": 3, "cache_read_input_tokens": 6, "output_tokens": 0}},
    },
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hé"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
)
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "output": [{"type": "message", "content": [{"type": "output_text", "text": "hé"}]}],
    "usage": {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 6}},
}
RESPONSE_STREAM = events(
    {"type": "response.created", "response": {"id": "resp_1", "object": "response", "status": "in_progress"}},
    {"type": "response.output_text.delta", "delta": "hé"},
    {"type": "response.completed", "response": RESPONSE},
)
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "stop_reason": "end_turn",
    "content": [{"type": "text", "text": "hé"}],
    "usage": {"input_tokens": 1, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 6, "output_tokens": 2},
}
COMPLETION = {
    "id": "cmpl-1",
    "choices": [{"index": 0, "text": "hé", "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 6}},
}


def told(reader: AnswerReader) -> tuple[object, ...]:
    tokens = (reader.num_prompt_tokens, reader.num_cached_tokens, reader.num_output_tokens)
    return (reader.completion_id, reader.finish_reason, reader.turn.text, *tokens)


@pytest.mark.parametrize("route", [endpoint.route for endpoint in ENDPOINTS])
async def test_what_no_rule_changes_crosses_untouched(route: str) -> None:
    upstream = MockUpstream()
    body = (
        b'{ "model":"m", "max_tokens": 5, "messages": [{"content":"h\\u00e9","role":"user"}], "input": "x", "n": 1.0}'
    )
    async with proxy_of(upstream) as proxy:
        answer = await proxy.post(route, body)
    assert (upstream.paths, upstream.bodies) == ([route], [body])
    assert answer.content == ANSWER
    assert answer.headers["x-prefixgate-cache"] == "cached=4; prompt=9; rules=none"


async def test_a_changing_header_line_goes_and_marks_of_the_cache_stay() -> None:
    upstream = MockUpstream()
    mark = {"cache_control": {"type": "ephemeral"}}
    tools = [{"name": name, "input_schema": {"type": "object", "required": ["b", "a"]}} for name in ("zoo", "ant")]
    rest = {"max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", **mark}]}]}
    async with proxy_of(upstream) as proxy:
        for number, order in enumerate((tools, tools[::-1])):
            system = [{"type": "text", "text": BILLING % number}, {"type": "text", "text": "Be kind.", **mark}]
            marked = [order[0], {**order[1], **mark}]
            answer = await proxy.post(MESSAGES, {"model": "m", "system": system, "tools": marked, **rest})
    assert answer.headers["x-prefixgate-cache"].endswith("rules=strip_client_header,sort_set_like_arrays")
    first, second = (json.loads(body) for body in upstream.bodies)
    assert first == second
    assert first["system"] == [{"type": "text", "text": "Be kind.", **mark}]
    assert [tool["name"] for tool in first["tools"]] == ["ant", "zoo"]
    assert [sorted(tool) for tool in first["tools"]] == [
        ["input_schema", "name"],
        ["cache_control", "input_schema", "name"],
    ]
    assert first["messages"] == rest["messages"]


@pytest.mark.parametrize(
    ("system", "printed"),
    [
        ("Be kind.\r\n", "Be kind."),
        (BILLING % 7, None),
        ([{"type": "text", "text": BILLING % 7}], None),
        (f"{BILLING % 7}\nBe kind.", "Be kind."),
    ],
)
async def test_the_head_is_printed_where_it_came_from(system: Any, printed: str | None) -> None:
    upstream = MockUpstream()
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    async with proxy_of(upstream) as proxy:
        await proxy.post(f"{MESSAGES}/count_tokens", {**body, "system": system})
    assert json.loads(upstream.bodies[0]) == body | ({} if printed is None else {"system": printed})


@given(st.sampled_from([MESSAGE_STREAM, RESPONSE_STREAM]), st.lists(st.integers(0, 700)), st.booleans())
def test_streams_of_both_forms_tell_the_same_in_whatever_pieces(stream: bytes, cuts: list[int], keeps: bool) -> None:
    reader = AnswerReader(keeps_message=keeps)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for start, stop in pairwise(places):
        assert not reader.is_done or start >= len(stream) - 1
        reader.feed(stream[start:stop])
    name, reason = ("msg_1", "end_turn") if stream is MESSAGE_STREAM else ("resp_1", "completed")
    assert told(reader) == (name, reason, "hé" if keeps else "", 9, 6, 2)
    assert reader.is_done


@pytest.mark.parametrize("answer", [MESSAGE, RESPONSE, COMPLETION], ids=["messages", "responses", "completions"])
def test_whole_answers_of_all_forms_tell_the_same(answer: dict[str, Any]) -> None:
    reader = AnswerReader(keeps_message=True)
    reader.read_body(json.dumps(answer).encode())
    assert told(reader)[2:] == ("hé", 9, 6, 2)


async def test_errors_have_the_shape_of_their_endpoint_before_the_first_byte_and_after_it() -> None:
    async with proxy_of(urls=["http://127.0.0.1:9"]) as proxy:
        assert (await proxy.post(MESSAGES)).json()["error"]["type"] == "api_error"
        assert (await proxy.post(MESSAGES, b"{}")).json()["error"]["type"] == "invalid_request_error"
    broken = MockUpstream(pieces=[MESSAGE_STREAM[:90], b""], content_type=b"text/event-stream", breaks_after=1)
    async with proxy_of(broken) as proxy:
        answer = await proxy.post(MESSAGES)
    *_, event, line, _ = answer.content.splitlines()
    assert event == b"event: error"
    assert json.loads(line.removeprefix(b"data: "))["type"] == "error"


async def test_a_client_that_leaves_with_the_last_event_has_all_that_it_asked_for() -> None:
    upstream = MockUpstream(pieces=[MESSAGE_STREAM, b""], content_type=b"text/event-stream", hangs_after=1)
    async with proxy_of(upstream) as proxy:
        assert (await proxy.post(MESSAGES)).content == MESSAGE_STREAM
        shown = await metrics(proxy.client)
    assert "prefixgate_aborted_requests_total 0.0" in shown
    assert "prefixgate_cached_tokens_total 6.0" in shown


async def test_what_generates_nothing_misses_no_usage_and_a_restricted_key_names_its_model_everywhere() -> None:
    upstream = MockUpstream(pieces=[b'{"tokens":[1]}'])
    async with proxy_of(upstream, keys=OneKey()) as proxy:
        good = {"authorization": "Bearer good"}
        assert (await proxy.post("/tokenize", b'{"content":"hi"}', **good)).status_code == 403
        assert (await proxy.post("/tokenize", b'{"content":"hi","model":"m"}', **good)).content == b'{"tokens":[1]}'
        assert "answers_without_usage_total 0.0" in await metrics(proxy.client)
