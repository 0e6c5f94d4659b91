from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversation import Conversation, body_of
from gateway.normalize.first_seen import first_seen
from gateway.normalize.memory import TurnMemory
from gateway.normalize.registry import Choice, RuleRegistry
from gateway.normalize.rule import Mode, safe
from tests.gateway.support.echoes import Body, normalize, rules

ON = rules("first_seen")


def tool(name: str, *properties: str, **function: Any) -> Body:
    schema = {
        "type": "object",
        "properties": {key: {"type": "string"} for key in properties},
        "required": list(properties),
    }
    return {"type": "function", "function": {"name": name, "parameters": schema, **function}}


def chat(*tools: Body) -> Body:
    return {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "tools": list(tools)}


def tools_of(sent: Body, *history: Body, rule_set: Any = ON, **options: Any) -> str:
    """As they are forwarded: the order of keys counts."""
    return json.dumps(body_of(normalize(sent, history, rule_set=rule_set, **options).conversation)["tools"])


def shuffled(tool: Body, backwards: bool) -> Body:
    """The same with the keys of all its objects in another order."""
    if isinstance(tool, dict):
        items = [(key, shuffled(value, backwards)) for key, value in tool.items()]
        return dict(reversed(items) if backwards else items)
    return [shuffled(value, backwards) for value in tool] if isinstance(tool, list) else tool


@given(st.permutations("abc"), st.permutations("abc"), st.booleans())
def test_the_same_tools_meet_in_the_rendering_seen_first(first: list, second: list, backwards: bool) -> None:
    tools = {name: tool(name, "x", "y") for name in "abc"}
    seen = chat(*(tools[name] for name in first))
    sent = chat(*(shuffled(tools[name], backwards) for name in second))
    assert tools_of(sent, seen) == json.dumps(seen["tools"])
    assert tools_of(seen) == json.dumps(seen["tools"]), "whoever comes first is left alone"


@pytest.mark.parametrize(
    ("seen", "sent"),
    [
        (tool("a", "x", "y", strict=True), shuffled(tool("a", "x", "y", strict=True), True)),
        (tool("a", "x", "y"), tool("a", "x", "y", strict=True)),
        (tool("a", "x", "y"), tool("a", "y", "x")),
        (tool("a", "x"), tool("a", "x", description="Books a slot.")),
        (tool("a", "x", examples=[1, 2]), tool("a", "x", examples=[2, 1])),
        (tool("a", default=1), tool("a", default=1.0)),
        (tool("a", default=1), tool("a", default=True)),
    ],
)
def test_other_tools_pass_unchanged(seen: Body, sent: Body) -> None:
    assert tools_of(chat(sent), chat(seen)) == json.dumps([sent])


def test_another_set_keeps_its_own_order() -> None:
    sent = chat(tool("c"), tool("b"), tool("a"))
    assert tools_of(sent, chat(tool("a"), tool("b"))) == json.dumps(sent["tools"])


def test_tools_of_one_name_keep_their_order() -> None:
    seen, sent = chat(tool("a", "x"), tool("a", "y")), chat(tool("a", "y"), tool("a", "x"))
    assert tools_of(sent, seen) == json.dumps(sent["tools"])


def test_another_scope_has_its_own_first_rendering() -> None:
    memory = TurnMemory()
    tools_of(chat(tool("a"), tool("b")), memory=memory, scope="tenant:b")
    sent = chat(tool("b"), tool("a"))
    assert tools_of(sent, memory=memory) == json.dumps(sent["tools"])


def test_it_is_off_unless_somebody_turns_it_on() -> None:
    sent = chat(shuffled(tool("a", "x", "y"), True))
    assert tools_of(sent, chat(tool("a", "x", "y")), rule_set=rules()) == tools_of(sent, rule_set=rules())


def test_the_order_by_name_does_not_run_beside_it() -> None:
    def by_name(conversation: Conversation) -> Conversation:
        return replace(conversation, tools=tuple(sorted(conversation.tools, key=lambda tool: tool["function"]["name"])))

    registry = RuleRegistry([first_seen(), safe("canonical_tool_order", 1, by_name)])

    def names(mode: Mode) -> list[list[str]]:
        result = normalize(chat(tool("b"), tool("a")), rule_set=registry.rule_set({"first_seen": Choice(mode)}))
        return [[tool["function"]["name"] for tool in form.tools] for form in (result.conversation, result.audited)]

    assert names(Mode.OFF) == [["a", "b"], ["a", "b"]]
    assert names(Mode.AUDIT) == [["a", "b"], ["b", "a"]]
    assert names(Mode.ON) == [["b", "a"], ["b", "a"]]
