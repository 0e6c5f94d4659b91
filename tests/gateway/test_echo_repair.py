from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversation import Message
from gateway.normalize.memory import TurnMemory
from gateway.normalize.registry import Choice, RuleRegistry, RuleSet
from gateway.normalize.rule import Mode
from gateway.normalize.turns import said
from tests.gateway.support.echoes import (
    EQUIVALENT,
    STATEFUL,
    Body,
    all_rules,
    bodies,
    drop_reasoning,
    echoed,
    normalize,
    other_ids,
    printed,
    rules,
    trim,
    write_anew,
)

OFF = rules(off=["echo_repair", "reasoning_restore"])
rule_sets = st.sampled_from([rules(), all_rules("first_seen")])


def call(arguments: str, call_id: str = "call_1", name: str = "stock") -> Body:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def chat(*turns: Body, system: str = "Be kind.", user: str = "Do you have one?") -> Body:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}, *turns]
    return {"model": "demo", "messages": messages}


def answered(content: Any, *, then: str = "Cheaper?", **fields: Any) -> Body:
    return chat({"role": "assistant", "content": content, **fields}, {"role": "user", "content": then})


def calling(*calls: Body, results: dict[str, str] | None = None, content: Any = None) -> Body:
    results = {"call_1": "4"} if results is None else results
    answers = [{"role": "tool", "tool_call_id": name, "content": text} for name, text in results.items()]
    return chat({"role": "assistant", "content": content, "tool_calls": list(calls)}, *answers)


def assert_restored(sent: Body, returned: Body) -> None:
    assert printed(normalize(sent, [returned])) == printed(normalize(returned))
    assert printed(normalize(sent)) != printed(normalize(returned)), "nothing was to be repaired"


def assert_passes(sent: Body, returned: Body) -> None:
    assert printed(normalize(sent, [returned])) == printed(normalize(sent))


@given(bodies(), st.lists(st.sampled_from(EQUIVALENT), max_size=4), st.booleans(), rule_sets)
def test_an_equivalent_history_is_restored_exactly(
    body: Body, changes: list, changes_ids: bool, rule_set: RuleSet
) -> None:
    sent = other_ids(body) if changes_ids else body
    for change in changes:
        sent = echoed(sent, change)
    assert printed(normalize(sent, [body], rule_set=rule_set)) == printed(normalize(body, rule_set=rule_set))


@given(bodies(), st.lists(st.sampled_from(EQUIVALENT), max_size=3), rule_sets)
def test_repair_is_idempotent(body: Body, changes: list, rule_set: RuleSet) -> None:
    sent = body
    for change in changes:
        sent = echoed(sent, change)
    memory = TurnMemory()
    result = normalize(sent, [body], memory=memory, rule_set=rule_set)
    canonical = {"messages": [json.loads(message) for message in printed(result)]}
    again = normalize(canonical, memory=memory, rule_set=rule_set)
    assert printed(again) == printed(result)
    assert again.fired == ()


@given(bodies(), st.lists(st.sampled_from(EQUIVALENT), max_size=1))
def test_rules_fire_where_something_changes_and_only_there(body: Body, changes: list) -> None:
    sent = body
    for change in changes:
        sent = echoed(sent, change)
    result = normalize(sent, [body])
    assert bool(result.fired) == (printed(result) != [json.dumps(message) for message in with_content_in_front(sent)])


def with_content_in_front(body: Body) -> list[Body]:
    """As a conversation prints messages, without any rule."""
    return [{"role": entry["role"], "content": entry.get("content"), **entry} for entry in body["messages"]]


@given(bodies(), st.data(), rule_sets)
def test_an_edited_turn_passes_byte_for_byte(body: Body, data: st.DataObject, rule_set: RuleSet) -> None:
    """And so do the turns after it, for they answer something else now; those before it are still restored."""
    sent = echoed(body, trim)
    turns = [index for index, message in enumerate(sent["messages"]) if message["role"] == "assistant"]
    edited = data.draw(st.sampled_from(turns))
    edit(sent["messages"][edited], data)
    after = printed(normalize(sent, [body], rule_set=rule_set))
    assert after[:edited] == printed(normalize(body, rule_set=rule_set))[:edited]
    assert after[edited:] == printed(normalize(sent, rule_set=rule_set))[edited:]


def edit(turn: Body, data: st.DataObject) -> None:
    calls = turn.get("tool_calls")
    kinds = ["text"] if not calls else ["text", "name", "argument", "gone"]
    kind = data.draw(st.sampled_from(kinds))
    if kind == "text":
        text = turn["content"] or ""
        place = data.draw(st.integers(0, len(text)))
        turn["content"] = text[:place] + "!" + text[place:]
    elif kind == "name":
        calls[0]["function"]["name"] += "s"
    elif kind == "argument":
        calls[-1]["function"]["arguments"] = '{"part": "other"}'
    else:
        del calls[-1]


@given(bodies())
def test_nothing_is_restored_from_another_scope(body: Body) -> None:
    memory = TurnMemory()
    normalize(body, [body], memory=memory, scope="tenant:b")
    sent = echoed(echoed(other_ids(body), trim), drop_reasoning)
    assert printed(normalize(sent, memory=memory)) == printed(normalize(sent))


@pytest.mark.parametrize(
    ("sent", "returned"),
    [
        (answered("Yes, two."), answered("Yes, two.\n\n")),
        (answered("Yes, two.\n"), answered("Yes, two.")),
        (answered("Yes, two.\u2028"), answered("Yes, two. ")),
        (calling(call('{"a":1,"b":[1.50,"x"]}')), calling(call('{ "a": 1, "b": [ 1.50, "x" ] }'))),
        (calling(call('{"b":"\\u00e9","a":{}}')), calling(call('{"a": {}, "b": "é"}'))),
        (calling(call("{}"), content=""), calling(call("{}"))),
        (calling(call("{}")), calling(call("{}"), content="\n\n")),
        (calling(call("{}", "x"), results={"x": "4"}), calling(call("{}"))),
        (answered("Yes.", tool_calls=[]), answered("Yes.")),
        (answered([{"type": "text", "text": "Yes"}]), answered([{"type": "text", "text": "Yes "}])),
    ],
)
def test_equivalent_turns_are_restored(sent: Body, returned: Body) -> None:
    assert_restored(sent, returned)


@pytest.mark.parametrize(
    ("sent", "returned"),
    [
        (answered("Yes, three."), answered("Yes, two.")),
        (answered("a\nb"), answered("a\n\nb")),
        (answered(" Yes."), answered("Yes.")),
        (answered("yes."), answered("Yes.")),
        (calling(call('{"n": 5.0}')), calling(call('{"n": 5}'))),
        (calling(call('{"n": "5"}')), calling(call('{"n": 5}'))),
        (calling(call('{"n": -0}')), calling(call('{"n": 0}'))),
        (calling(call('{"n": 1, "n": 2}')), calling(call('{"n": 2, "n": 1}'))),
        (calling(call('{"n": 5e0}')), calling(call('{"n": 5}'))),
        (calling(call('{"n": 1E2}')), calling(call('{"n": 1e2}'))),
        (calling(call('{"n": [1, 2]}')), calling(call('{"n": [2, 1]}'))),
        (calling(call('{"n": [["a", 1]]}')), calling(call('{"n": {"a": 1}}'))),
        (calling(call('{"n": true}')), calling(call('{"n": 1}'))),
        (calling(call('{"n": null}')), calling(call("{}"))),
        (calling(call('{"n": 1, "n": 2}')), calling(call('{"n": 2}'))),
        (calling(call('{"n": 1')), calling(call('{"n":1'))),
        (calling(call(" ")), calling(call(""))),
        (calling(call("{}", name="price")), calling(call("{}"))),
        (
            calling(call("{}", name="a"), call("[]", "call_2", name="b")),
            calling(call("[]", name="b"), call("{}", "call_2", name="a")),
        ),
        (answered("Yes.", refusal="no"), answered("Yes. ")),
        (answered("Yes.", function_call={"name": "f", "arguments": "{}"}), answered("Yes. ")),
    ],
)
def test_other_turns_pass_unchanged(sent: Body, returned: Body) -> None:
    assert_passes(sent, returned)


def test_fields_that_nobody_remembers_stay() -> None:
    sent = answered("Yes.", x_note=[1], tool_calls=None)
    result = json.loads(printed(normalize(sent, [answered("Yes. ", x_id="a")]))[2])
    assert result == {"role": "assistant", "content": "Yes. ", "x_note": [1]}


def test_a_beginning_to_be_continued_is_never_touched() -> None:
    returned = answered("return ")
    assert_passes(chat({"role": "assistant", "content": "return"}), returned)
    continued = chat({"role": "assistant", "content": "return"}, {"role": "assistant", "content": "return"})
    after = printed(normalize(continued, [returned]))
    assert [json.loads(message)["content"] for message in after[2:]] == ["return ", "return"]


def test_a_turn_is_restored_where_it_was_returned_and_nowhere_else() -> None:
    returned = answered("Yes.\n", reasoning_content="Stock says 4.")
    assert_passes(
        chat({"role": "assistant", "content": "Yes."}, {"role": "user", "content": "?"}, user="Any?"), returned
    )
    later = chat(
        {"role": "assistant", "content": "Hm."},
        {"role": "user", "content": "Do you have one?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "?"},
    )
    assert_passes(later, returned)


def test_results_of_other_calls_are_another_place() -> None:
    def after(first: str, second: str, text: str) -> Body:
        body = calling(call("{}"), call("{}", "call_2"), results={first: "4", second: "5"})
        body["messages"] += [{"role": "assistant", "content": text}, {"role": "user", "content": "?"}]
        return body

    assert_restored(after("call_1", "call_2", "9"), after("call_1", "call_2", "9 "))
    assert_passes(after("call_2", "call_1", "9"), after("call_1", "call_2", "9 "))


def test_ids_that_come_twice_are_left_alone_and_the_arguments_are_repaired() -> None:
    sent = calling(call('{"a":1}', "x"), call('{"a":2}', "x"), results={"x": "4"})
    returned = calling(call('{"a": 1}'), call('{"a": 2}', "call_2"), results={"call_1": "4"})
    turn = json.loads(printed(normalize(sent, [returned]))[2])
    assert [entry["id"] for entry in turn["tool_calls"]] == ["x", "x"]
    assert [entry["function"]["arguments"] for entry in turn["tool_calls"]] == ['{"a": 1}', '{"a": 2}']


def test_ids_keep_the_shape_that_a_template_demands() -> None:
    memory = TurnMemory()
    returned = calling(call('{"a": 1}'))
    normalize(returned, [returned], memory=memory)
    sent = calling(call('{"a":1}', "x"), results={"x": "4"})
    *_, turn, result = printed(normalize(sent, memory=memory, rule_set=all_rules("canonical_call_ids")))
    assert json.loads(turn)["tool_calls"] == [call('{"a": 1}', "call_0")]
    assert json.loads(result)["tool_call_id"] == "call_0"


def test_a_clock_in_the_head_does_not_keep_text_and_ids_from_repair() -> None:
    returned, sent = answered("Yes. ", reasoning_content="Hm."), answered("Yes.")
    returned["messages"][0]["content"], sent["messages"][0]["content"] = "It is 10:00.", "It is 10:01."
    assert json.loads(printed(normalize(sent, [returned]))[2]) == {"role": "assistant", "content": "Yes. "}


def test_the_turn_returned_last_counts() -> None:
    memory = TurnMemory()
    for content in ("Yes.", "Yes.\n"):
        normalize(answered(content), [answered(content)], memory=memory, rule_set=OFF)
    assert json.loads(printed(normalize(answered("Yes. "), memory=memory))[2])["content"] == "Yes.\n"


def test_audit_reports_and_changes_nothing() -> None:
    audit = RuleRegistry(STATEFUL).rule_set(
        {"echo_repair": Choice(Mode.AUDIT), "reasoning_restore": Choice(Mode.AUDIT)}
    )
    result = normalize(answered("Yes."), [answered("Yes. ", reasoning="Hm.")], rule_set=audit)
    assert result.would_fire == ("echo_repair", "reasoning_restore")
    assert result.conversation.messages[2] == Message("assistant", "Yes.")
    assert result.audited.messages[2] == Message("assistant", "Yes. ", {"reasoning": "Hm."})


def test_deep_or_broken_arguments_are_compared_as_text() -> None:
    deep = "[" * 100_000
    for text in (deep, "[" * 900 + "]" * 900, '{"a": tru}', "NaN", '"\ud800"'):
        message = Message("assistant", None, {"tool_calls": [call(text)]})
        assert said(message) == said(copy.deepcopy(message))


def test_off_restores_nothing() -> None:
    sent = echoed(echoed(answered("Yes. ", reasoning_content="Hm."), trim), drop_reasoning)
    assert printed(normalize(sent, [answered("Yes. ")], rule_set=OFF)) == printed(normalize(sent))


def test_arguments_are_written_anew_by_the_support_code() -> None:
    body = calling(call('{"part": "CH", "count": 5.0}'))
    tight = echoed(body, write_anew(tight=True, backwards=True))
    assert tight["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"count":5.0,"part":"CH"}'
