"""Heads that were seen before come out as the same objects, bounded, and apart for every scope and set of rules."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.chat_request import conversation_of
from gateway.conversation import Conversation, Message
from gateway.normalize.head_memo import HeadMemo, join_head, split_head
from gateway.normalize.registry import Choice, RuleRegistry
from gateway.normalize.rule import Context, Mode, safe
from gateway.normalize.rules import built_in_rules
from tests.gateway.support.chats import Body, bodies, chat, printed, tool, user


def parsed(body: Body) -> Conversation:
    """As from the wire: no object is shared with another parse."""
    return conversation_of(json.loads(json.dumps(body)))


BODY = chat(user("Hi"), system=" Be kind.\r\n", tools=[tool("b"), tool("a", strict=None)])


def test_an_equal_head_comes_out_as_the_same_objects_whatever_the_turns_are() -> None:
    rules = built_in_rules().rule_set()
    for body in (BODY, chat(user("Hi"), system="Be kind.", tools=[tool("a"), tool("b")])):
        first = rules.normalize(parsed(body)).conversation
        second = rules.normalize(parsed({**body, "messages": [*body["messages"], user("More")]})).conversation
        assert second.messages[0] is first.messages[0]
        assert second.tools is first.tools


def test_another_scope_or_set_of_rules_gets_its_own() -> None:
    registry = built_in_rules()
    first = registry.rule_set().normalize(parsed(BODY), Context("a")).conversation
    other = registry.rule_set().normalize(parsed(BODY), Context("b")).conversation
    assert other == first
    assert other.tools is not first.tools
    for rule in registry.rules:
        less = {rule.name: Choice(Mode.OFF)}
        known = registry.rule_set(less).normalize(parsed(BODY), Context("a")).conversation
        assert printed(known) == printed(built_in_rules().rule_set(less).normalize(parsed(BODY)).conversation)


def test_heads_that_are_equal_in_python_and_not_on_the_wire_stay_apart() -> None:
    rules = built_in_rules().rule_set()
    schemas: list[dict[str, Any]] = [{"default": 1}, {"default": 1.0}, {"default": True}]
    out = [printed(rules.normalize(parsed(chat(tools=[tool(parameters=schema)]))).conversation) for schema in schemas]
    assert len(set(out)) == 3
    orders = [{"properties": {"a": {}, "b": {}}}, {"properties": {"b": {}, "a": {}}}]
    out = [printed(rules.normalize(parsed(chat(tools=[tool(parameters=schema)]))).conversation) for schema in orders]
    assert len(set(out)) == 2


@given(st.lists(bodies, min_size=1, max_size=3))
def test_what_is_remembered_is_what_would_be_made(several: list[Body]) -> None:
    registry = built_in_rules()
    for body in [*several, *several]:
        known = registry.rule_set().normalize(parsed(body))
        fresh = built_in_rules().rule_set().normalize(parsed(body))
        assert printed(known.conversation) == printed(fresh.conversation)
        assert known.fired == fresh.fired


@given(bodies)
def test_a_conversation_is_its_head_and_its_turns(body: Body) -> None:
    conversation = parsed(body)
    head, turns = split_head(conversation)
    assert join_head(head, turns) == conversation
    assert turns.num_head_messages == 0


def test_a_known_head_is_not_changed_again() -> None:
    calls = []

    def count(conversation: Conversation) -> Conversation:
        calls.append(len(conversation.messages))
        return conversation

    rules = RuleRegistry([safe("count", 1, count, by_region=True)]).rule_set()
    for _ in range(3):
        rules.normalize(parsed(BODY))
    assert sorted(calls) == [1, 1, 1, 1]  # one head, three times the turns


def head(text: str) -> Conversation:
    return Conversation((Message("system", text),))


def test_the_least_recently_used_is_forgotten_when_memory_is_full() -> None:
    made: list[str] = []

    def find_out(conversation: Conversation) -> str:
        made.append(str(conversation.messages[0].content))
        return made[-1]

    memo = HeadMemo[str](max_bytes=3 * 4000)
    for text in ("a", "b", "c", "a", "d", "a", "b"):
        assert memo.know("rules", head(text * 600), find_out) == text * 600
    assert [text[0] for text in made] == ["a", "b", "c", "d", "b"]
    huge = head("x" * 100_000)
    assert memo.know("rules", huge, find_out) == memo.know("rules", huge, find_out)
    assert len(made) == 7


def test_a_head_that_json_cannot_hold_is_simply_not_remembered() -> None:
    memo = HeadMemo[int]()
    odd = replace(head("a"), tools=({"x": {1, 2}},))
    assert [memo.know("rules", odd, lambda _: 5) for _ in range(2)] == [5, 5]
