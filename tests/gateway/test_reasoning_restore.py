from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.support.echoes import Body, normalize, printed, rules

THOUGHT = {"type": "thinking", "thinking": "Stock says 4.", "signature": "s"}
ONLY = rules(off=["echo_repair"])


def text(content: str) -> Body:
    return {"type": "text", "text": content}


def answered(content: Any, *, system: str = "Be kind.", **fields: Any) -> Body:
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": "Do you have one?"},
        {"role": "assistant", "content": content, **fields},
        {"role": "user", "content": "Cheaper?"},
    ]
    return {"model": "demo", "messages": messages}


def turn(body: Body, *history: Body, **options: Any) -> Body:
    return json.loads(printed(normalize(body, history, **options))[2])


@pytest.mark.parametrize("rule_set", [rules(), ONLY], ids=["with echo repair", "alone"])
@pytest.mark.parametrize(
    ("returned", "sent"),
    [
        (answered("Yes.", reasoning_content="Hm."), answered("Yes.")),
        (answered("Yes.", reasoning="Hm."), answered("Yes.")),
        (answered("Yes.", reasoning="Hm.", reasoning_content="Hm."), answered("Yes.", reasoning=None)),
        (answered("Yes.", reasoning_content="Hm."), answered("Yes.", reasoning_content="", reasoning="")),
        (answered("Yes.", reasoning_content="Hm.\n"), answered("Yes.", reasoning="Hm.")),
        (answered([THOUGHT, text("Yes.")]), answered("Yes.")),
        (answered([THOUGHT, text("Yes.")]), answered([text("Yes.")])),
        (answered([THOUGHT, {"text": "Yes.", "type": "text"}]), answered("Yes.")),
        (answered([THOUGHT, text("Yes.")]), answered("Yes.", reasoning_content="Stock says 4.")),
        (answered([THOUGHT, text("Yes,"), THOUGHT, text("two.")]), answered([text("Yes,"), text("two.")])),
        (answered("Yes."), answered("Yes.", reasoning_content="")),
    ],
)
def test_dropped_reasoning_is_put_back(returned: Body, sent: Body, rule_set: Any) -> None:
    assert printed(normalize(sent, [returned], rule_set=rule_set)) == printed(normalize(returned, rule_set=rule_set))


@pytest.mark.parametrize("rule_set", [rules(), ONLY], ids=["with echo repair", "alone"])
@pytest.mark.parametrize(
    ("returned", "sent"),
    [
        (answered("Yes.", reasoning_content="Hm."), answered("Yes.", reasoning_content="I see.")),
        (answered("Yes.", reasoning_content="Hm."), answered("Yes!")),
        (answered([THOUGHT, text("Yes.")]), answered("Yes.", reasoning_content="I see.")),
        (answered([THOUGHT, text("Yes,"), text("two.")]), answered("Yes,two.")),
        (answered("Yes.", reasoning_content="Hm.", system="It is 10:00."), answered("Yes.", system="It is 10:01.")),
    ],
)
def test_other_reasoning_or_another_turn_stays(returned: Body, sent: Body, rule_set: Any) -> None:
    assert turn(sent, returned, rule_set=rule_set) == turn(sent, rule_set=rule_set)


def test_an_equal_turn_of_another_conversation_gets_no_reasoning_of_it() -> None:
    returned, sent = answered("Yes.", reasoning_content="Hm."), answered("Yes.")
    sent["messages"][1]["content"] = "Do you have two?"
    assert turn(sent, returned) == {"role": "assistant", "content": "Yes."}


def test_each_head_gets_its_own_reasoning() -> None:
    first = answered("Yes.", reasoning_content="The first.", system="Be kind.")
    second = answered("Yes.", reasoning_content="The second.", system="Be short.")
    for system, thought in (("Be kind.", "The first."), ("Be short.", "The second.")):
        assert turn(answered("Yes.", system=system), first, second)["reasoning_content"] == thought


def test_calls_get_their_reasoning_and_stand_where_they_stood() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    returned = answered(None, reasoning_content="Hm.", tool_calls=calls)
    returned["messages"][3:] = [{"role": "tool", "tool_call_id": "c", "content": "4"}]
    sent = answered(None, tool_calls=calls)
    sent["messages"][3:] = returned["messages"][3:]
    assert list(turn(sent, returned)) == ["role", "content", "reasoning_content", "tool_calls"]
    assert printed(normalize(sent, [returned])) == printed(normalize(returned))
