"""Rules that are on for everybody: which bodies meet, and which stay apart."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.chat_request import conversation_of, parse_chat_request
from gateway.conversation import body_of
from gateway.errors import InvalidRequestError
from gateway.normalize.rules import built_in_rules
from tests.gateway.support.chats import (
    HEADER,
    Body,
    assistant,
    call,
    calling,
    canonical,
    chat,
    normalize,
    result,
    rule_set,
    tool,
    user,
)

MARK = {"cache_control": {"type": "ephemeral"}}


def part(text: str, **fields: Any) -> Body:
    return {"type": "text", "text": text, **fields}


def with_tools(*tools: Body) -> Body:
    return chat(tools=list(tools))


def schema(**keywords: Any) -> Body:
    return with_tools(tool(parameters=keywords))


CALLED_TWICE = calling("x", "y")
MEET = {
    "single_part_to_string": [chat(user("Hi")), chat(user([part("Hi")]))],
    "strip_cache_markers": [
        chat(user("Hi"), system="S", tools=[tool()]),
        chat(user([part("Hi", **MARK)]), system=[part("S", **MARK)], tools=[{**tool(), **MARK}]),
        chat(user("Hi", **MARK), system="S", tools=[tool(**MARK)], **MARK),
    ],
    "strip_cache_markers in calls": [
        chat(user("Hi"), assistant(None, tool_calls=[call("x")]), result("x")),
        chat(user("Hi"), assistant(None, tool_calls=[{**call("x"), **MARK}]), result("x", [part("4", **MARK)])),
    ],
    "strip_client_header": [
        chat(system="Be kind."),
        chat(system=HEADER.format("3a", "00") + "\nBe kind."),
        chat(system=HEADER.format("3b", "ff") + "Be kind."),
        chat(system="\ufeff \n" + HEADER.format(1, 2) + " \r\n" + HEADER.format(3, 4) + "\n\nBe kind."),
        chat(system="x-anthropic-billing-header: cc_version=1; cch=77\nBe kind."),
        chat(system=[part(HEADER.format(5, 6)), part("Be kind.")]),
        chat(system=[part(HEADER.format(5, 6), **MARK), part("Be kind.", **MARK)]),
    ],
    "strip_client_header of its own message": [
        chat({"role": "system", "content": "Be kind."}, user("Hi"), system=HEADER.format(5, 6)),
        chat({"role": "system", "content": "Be kind."}, user("Hi"), system=None),
    ],
    "drop_null_message_fields": [
        chat(user("Hi"), assistant("Yes."), user("And?")),
        chat(user("Hi", name=None), assistant("Yes.", refusal=None, annotations=[], tool_calls=None), user("And?")),
        chat(user("Hi"), assistant("Yes.", tool_calls=[], audio=None, function_call=None), user("And?")),
        chat(user("Hi"), assistant([part("Yes.", annotations=[])]), user("And?")),
    ],
    "one_empty_content_form beside calls": [
        chat(user("Hi"), {"role": "assistant", "tool_calls": [call("x")]}, result("x")),
        chat(user("Hi"), calling("x"), result("x")),
        chat(user("Hi"), calling("x", content=""), result("x")),
        chat(user("Hi"), calling("x", content=[]), result("x")),
        chat(user("Hi"), calling("x", content=[part("")]), result("x")),
    ],
    "one_empty_content_form alone": [
        chat(user("Hi"), assistant(""), user("Well?")),
        chat(user("Hi"), assistant(None), user("Well?")),
        chat(user("Hi"), {"role": "assistant"}, user("Well?")),
    ],
    "drop_empty_tools": [chat(), chat(tools=[]), chat(functions=[])],
    "drop_unset_tool_fields": [
        with_tools(tool()),
        with_tools({**tool(strict=None), "defer_loading": None}),
        with_tools(tool(annotations=None, response=None)),
    ],
    "canonical_schema_keywords": [
        schema(type="object", properties={"b": {"type": "string", "enum": ["z", "a"]}, "a": {}}, required=["b"]),
        schema(required=["b"], properties={"b": {"enum": ["z", "a"], "type": "string"}, "a": {}}, type="object"),
        with_tools(
            {
                "function": {
                    "parameters": {
                        "properties": {"b": {"enum": ["z", "a"], "type": "string"}, "a": {}},
                        "type": "object",
                        "required": ["b"],
                    },
                    "description": "Looks.",
                    "name": "look",
                },
                "type": "function",
            }
        ),
    ],
    "canonical_schema_keywords in depth": [
        schema(items={"anyOf": [{"type": "a", "title": "t"}]}, additionalProperties={"type": "b", "title": "t"}),
        schema(additionalProperties={"title": "t", "type": "b"}, items={"anyOf": [{"title": "t", "type": "a"}]}),
    ],
    "sort_set_like_arrays": [
        schema(type=["null", "object"], required=["a", "b"], dependentRequired={"a": ["b", "c"]}),
        schema(type=["object", "null"], required=["b", "a"], dependentRequired={"a": ["c", "b"]}),
    ],
    "canonical_tool_order": [with_tools(tool("a"), tool("b"), tool("c")), with_tools(tool("c"), tool("a"), tool("b"))],
    "order_tool_results_by_call": [
        chat(user("Hi"), CALLED_TWICE, result("x", "1"), result("y", "2"), result("z", "3"), user("Well?")),
        chat(user("Hi"), CALLED_TWICE, result("y", "2"), result("x", "1"), result("z", "3"), user("Well?")),
        chat(user("Hi"), CALLED_TWICE, result("z", "3"), result("y", "2"), result("x", "1"), user("Well?")),
    ],
    "overwrite_client_salt": [chat(), chat(cache_salt="a"), chat(cache_salt="b")],
}


@pytest.mark.parametrize("bodies", MEET.values(), ids=MEET)
def test_bodies_that_mean_the_same_meet(bodies: list[Body]) -> None:
    assert len({canonical(body) for body in bodies}) == 1


@pytest.mark.parametrize("name", MEET)
def test_it_is_this_rule_that_brings_them_together(name: str) -> None:
    without = rule_set(off=[name.split(" ")[0]])
    if name.startswith("drop_empty_tools"):
        assert len({canonical(body, without) for body in MEET[name]}) == 3
    assert len({canonical(body, without) for body in MEET[name]}) > 1


def mentions(text: str) -> Body:
    return chat(system=f"Be kind. {text}")


APART = {
    "several parts": [chat(user([part("a"), part("b")])), chat(user("a\nb")), chat(user("ab")), chat(user("a b"))],
    "a header in the middle": [mentions(HEADER.format(1, 2)), mentions(HEADER.format(1, 3))],
    "a header of a user": [chat(user(HEADER.format(1, 2))), chat(user(HEADER.format(1, 3)))],
    "a header that somebody else made": [
        chat(system="x-other-header: cch=1;S"),
        chat(system="x-other-header: cch=2;S"),
    ],
    "what follows a header": [chat(system=HEADER.format(1, 2) + "A; b"), chat(system=HEADER.format(1, 2) + " b")],
    "markers that are data": [
        chat(response_format={"cache_control": 1}),
        chat(response_format={"cache_control": 2}),
        schema(properties={"cache_control": {"type": "string"}}),
        schema(properties={}),
    ],
    "an explicit value": [with_tools(tool(strict=True)), with_tools(tool(strict=False)), with_tools(tool())],
    "a null in a schema": [schema(default=None), schema()],
    "an unknown null": [with_tools(tool(x_own=None)), with_tools(tool())],
    "ordered arrays": [
        schema(enum=["a", "b"]),
        schema(enum=["b", "a"]),
        schema(anyOf=[{"type": "a"}, {"type": "b"}]),
        schema(anyOf=[{"type": "b"}, {"type": "a"}]),
        schema(examples=[{"type": 1, "title": 2}]),
        schema(examples=[{"title": 2, "type": 1}]),
    ],
    "the order of properties": [schema(properties={"a": {}, "b": {}}), schema(properties={"b": {}, "a": {}})],
    "the order of properties of a strict tool": [
        with_tools(tool(strict=True, parameters={"properties": {"a": {}, "b": {}}})),
        with_tools(tool(strict=True, parameters={"properties": {"b": {}, "a": {}}})),
    ],
    "sets of a strict tool": [
        with_tools(tool(strict=True, parameters={"required": ["a", "b"]})),
        with_tools(tool(strict=True, parameters={"required": ["b", "a"]})),
    ],
    "a tool less": [with_tools(tool("a"), tool("b")), with_tools(tool("a")), chat()],
    "tools of one name": [
        with_tools(tool("a", description="1"), tool("a", description="2")),
        with_tools(tool("a", description="2"), tool("a", description="1")),
    ],
    "descriptions": [with_tools(tool(description="Looks. ")), with_tools(tool(description="Looks."))],
    "output schemas": [
        chat(response_format={"json_schema": {"schema": {"type": "object", "required": ["a", "b"]}}}),
        chat(response_format={"json_schema": {"schema": {"required": ["a", "b"], "type": "object"}}}),
        chat(response_format={"json_schema": {"schema": {"type": "object", "required": ["b", "a"]}}}),
    ],
    "switches of the template": [
        chat(chat_template_kwargs={"enable_thinking": True}),
        chat(chat_template_kwargs={"enable_thinking": False}),
        chat(reasoning_effort="high"),
    ],
    "results of one id": [
        chat(user("Hi"), calling("x", "x"), result("x", "1"), result("x", "2")),
        chat(user("Hi"), calling("x", "x"), result("x", "2"), result("x", "1")),
    ],
    "results where one id is called twice": [
        chat(user("Hi"), calling("x", "y", "x"), result("y"), result("x")),
        chat(user("Hi"), calling("x", "y", "x"), result("x"), result("y")),
    ],
    "results after something else": [
        chat(user("Hi"), CALLED_TWICE, result("y"), user("Wait."), result("x")),
        chat(user("Hi"), CALLED_TWICE, result("x"), user("Wait."), result("y")),
    ],
    "numbers": [
        chat(user("Hi"), assistant(None, tool_calls=[call("x", arguments=text)]), result("x"))
        for text in ('{"n": 5}', '{"n": 5.0}', '{"n": "5"}', '{"n":5}')
    ],
    "numbers in tools": [schema(default=value) for value in (1, 1.0, True, "1")],
    "an empty text of reasoning": [
        chat(user("Hi"), assistant("Yes.", reasoning_content=""), user("And?")),
        chat(user("Hi"), assistant("Yes."), user("And?")),
    ],
    "a later system message": [
        chat({"role": "system", "content": "One word."}, user("Hi"), assistant("Hi"), user("And?")),
        chat(user("Hi"), assistant("Hi"), {"role": "system", "content": "One word."}, user("And?")),
    ],
    "special tokens in text": [chat(system="<|im_start|>"), chat(system=""), chat(user("<s><s>a")), chat(user("<s>a"))],
    "dates and ids": [chat(system="Before 2030-01-02."), chat(system="Before 2031-01-02."), chat(system="Case 8f3e.")],
    "looks": [
        chat(system="x\u00b2"),
        chat(system="x2"),
        chat(system="X2"),
        chat(system="x\u200b2"),
        chat(system="x\u00a02"),
    ],
    "lists": [chat(system="1. a\n2. b"), chat(system="1. b\n2. a"), chat(system="- a\n- b"), chat(system="- b\n- a")],
    "a prefill": [chat(user("Hi"), assistant(text)) for text in ("a ", "a", "", "a\r\n", "a\n", " a")],
    "the text of a result": [
        chat(user("Hi"), calling("x"), result("x", text)) for text in ("{}", "{ }", "{}\n", "{}\r\n")
    ],
    "models": [{**chat(), "model": "m:a"}, {**chat(), "model": "m:b"}],
}


@pytest.mark.parametrize("bodies", APART.values(), ids=APART)
def test_bodies_that_may_differ_stay_apart(bodies: list[Body]) -> None:
    assert len({canonical(body) for body in bodies}) == len(bodies)


def test_rules_that_are_off_change_nothing() -> None:
    off = rule_set(off=[rule.name for rule in built_in_rules().rules])
    for bodies in (*MEET.values(), *APART.values()):
        for body in bodies:
            after = body_of(normalize(body, off).conversation)
            assert json.dumps(after) == json.dumps(body_of(conversation_of(body)))


def test_a_later_system_message_stays_where_it_is_and_as_it_is() -> None:
    late = {"role": "system", "content": "\ufeff " + HEADER.format(1, 2) + "\r\n Now. \r\n"}
    after = normalize(chat(user("Hi"), assistant("Yes."), late, user("And?"))).conversation
    assert body_of(after)["messages"][3] == late


def test_an_assistant_may_say_nothing_as_a_list_and_others_may_not() -> None:
    body = chat(user("Hi"), assistant([]), user("Well?"))
    assert parse_chat_request(json.dumps(body).encode()).conversation.messages[2].content == ()
    with pytest.raises(InvalidRequestError, match=r"messages\[1\]\.content: got .*1 to"):
        conversation_of(chat(user([])))


def test_every_safe_rule_is_exercised_here() -> None:
    named = {name.split(" ")[0] for name in MEET}
    elsewhere = {"drop_leading_bom", "trim_end_of_system", "crlf_to_lf_system"}
    assert {rule.name for rule in built_in_rules().rules if rule.rule_class == "safe"} == named | elsewhere
