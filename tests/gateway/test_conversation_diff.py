"""A diff of two conversations tells all that differs, in lines that can be read."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings

from gateway.chat_request import conversation_of
from gateway.conversation import body_of
from gateway.conversation_diff import unified_diff
from tests.gateway.support.chats import bodies, every_rule, normalize


def diff(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return unified_diff(old, new, old_name="a", new_name="b").split("\n")


def test_texts_are_compared_by_their_lines_and_tools_as_indented_json() -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"b": 1, "a": 2}}}
    old = {"messages": [{"role": "user", "content": "one\ntwo\u200b"}], "tools": [tool]}
    turned = {"type": "function", "function": {"name": "look", "parameters": {"a": 2, "b": 1}}}
    new = {"messages": [{"role": "user", "content": [{"type": "text", "text": "one\ntwo"}]}], "tools": [turned]}
    assert [line for line in diff(old, new)[3:] if line[0] in "+-"] == [
        "+[text]",
        "-two\\u200b",
        "+two",
        '-      "b": 1,',
        '-      "a": 2',
        '+      "a": 2,',
        '+      "b": 1',
    ]


@settings(max_examples=30)
@given(bodies)
def test_a_diff_is_empty_where_nothing_differs_and_nowhere_else(body: dict[str, Any]) -> None:
    normalized = normalize(body, every_rule())
    raw, canonical = body_of(conversation_of(body)), body_of(normalized.conversation)
    found = unified_diff(raw, canonical, old_name="a", new_name="b")
    assert bool(found) == (json.dumps(raw) != json.dumps(canonical))
    assert all(line.isprintable() for line in found.split("\n"))
