"""What holds for all rules together: order, idempotence, and what none of them ever changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.chat_request import conversation_of
from gateway.conversation import Conversation, body_of, texts_of
from gateway.normalize.memory import TurnMemory
from gateway.normalize.registry import Choice, RuleRegistry
from gateway.normalize.rule import Context, Mode
from gateway.normalize.rules import MUST_FOLLOW, built_in_rules
from tests.gateway.support.chats import PARAMS, Body, bodies, every_rule, normalize, printed, rule_set, texts

NAMES = [rule.name for rule in built_in_rules().rules]
BY_REGION = [rule.name for rule in built_in_rules().rules if rule.by_region]


def test_declared_pairs_are_rules_in_this_order() -> None:
    for later, earlier in MUST_FOLLOW:
        assert NAMES.index(earlier) < NAMES.index(later)


def test_rules_that_look_at_one_region_come_first() -> None:
    assert NAMES[: len(BY_REGION)] == BY_REGION


@st.composite
def orders(draw: st.DrawFn) -> Sequence[str]:
    """An order of the region rules in which only the declared pairs hold."""
    left = list(draw(st.permutations(BY_REGION)))
    order: list[str] = []
    while left:
        free = next(
            name for name in left if not any(later == name and earlier in left for later, earlier in MUST_FOLLOW)
        )
        left.remove(free)
        order.append(free)
    return order


@settings(max_examples=200)
@given(bodies, orders())
def test_rules_come_out_the_same_in_every_order_that_keeps_the_declared_pairs(body: Body, order: Sequence[str]) -> None:
    rules = {rule.name: rule for rule in built_in_rules().rules}
    choices = {name: Choice(Mode.ON, PARAMS.get(name, {})) for name in BY_REGION}
    declared = RuleRegistry([rules[name] for name in BY_REGION]).rule_set(choices)
    shuffled = RuleRegistry([rules[name] for name in order]).rule_set(choices)
    conversation = conversation_of(body)
    assert printed(shuffled.normalize(conversation).conversation) == printed(
        declared.normalize(conversation).conversation
    )


@settings(max_examples=200)
@given(bodies, st.booleans())
def test_normalizing_twice_changes_nothing_more(body: Body, all_on: bool) -> None:
    rules, memory = every_rule() if all_on else rule_set(), TurnMemory()
    once = normalize(body, rules, memory).conversation
    again = normalize(json.loads(printed(once)), rules, memory)
    assert printed(again.conversation) == printed(once)
    assert again.fired == ()


@given(bodies)
def test_a_rule_fires_exactly_where_something_changes(body: Body) -> None:
    for rules in (rule_set(), every_rule()):
        conversation = conversation_of(body)
        result = rules.normalize(conversation, Context("t"))
        assert bool(result.fired) == (printed(result.conversation) != printed(conversation))


def spoken(conversation: Conversation) -> list[Any]:
    """Text of users, tools and assistants, and of system messages among them."""
    turns = conversation.messages[conversation.num_head_messages :]
    return sorted(json.dumps([turn.role, texts_of(turn.content) or [""]]) for turn in turns)


@given(bodies)
def test_what_users_tools_and_assistants_said_passes_byte_for_byte(body: Body) -> None:
    before = conversation_of(body)
    after = normalize(body).conversation
    assert spoken(after) == spoken(before)
    assert [turn.role for turn in after.messages[after.num_head_messages :]] == [
        turn.role for turn in before.messages[before.num_head_messages :]
    ]


@given(bodies)
def test_unknown_fields_output_schemas_and_switches_pass(body: Body) -> None:
    after = body_of(normalize(body, every_rule()).conversation)
    for name in ("x_own", "response_format", "chat_template_kwargs", "model"):
        assert json.dumps(after.get(name)) == json.dumps(body.get(name))
    own = sorted(json.dumps(message["x_own"]) for message in body["messages"] if "x_own" in message)
    assert sorted(json.dumps(message["x_own"]) for message in after["messages"] if "x_own" in message) == own


@given(bodies)
def test_what_is_said_at_the_end_is_never_changed(body: Body) -> None:
    prefill = {"role": "assistant", "content": "def area(r):\r\n    return "}
    after = normalize({**body, "messages": [*body["messages"], prefill]}, every_rule(), TurnMemory()).conversation
    assert body_of(after)["messages"][-1] == prefill


@given(bodies, st.data())
def test_an_edit_of_what_was_said_is_always_seen(body: Body, data: st.DataObject) -> None:
    """In user, tool and assistant text: the two outputs differ, whatever rules are on."""
    own = [
        index
        for index, message in enumerate(body["messages"])
        if message["role"] in ("user", "tool", "assistant") and isinstance(message["content"], str)
    ]
    if not own:
        return
    index = data.draw(st.sampled_from(own))
    text = body["messages"][index]["content"]
    place, inserted = data.draw(st.integers(0, len(text))), data.draw(texts.filter(bool))
    messages = [dict(message) for message in body["messages"]]
    messages[index]["content"] = text[:place] + inserted + text[place:]
    for rules in (rule_set(), every_rule()):
        assert printed(normalize(body, rules).conversation) != printed(
            normalize({**body, "messages": messages}, rules).conversation
        )


@given(bodies, st.randoms(use_true_random=False))
def test_order_of_tools_and_of_keywords_makes_no_difference(body: Body, random: Any) -> None:
    unique = list({tool["function"]["name"]: tool for tool in body["tools"]}.values())
    body = {**body, "tools": unique}
    shuffled = {**body, "tools": [shuffle_keywords(tool, random) for tool in random.sample(unique, len(unique))]}
    assert printed(normalize(shuffled).conversation) == printed(normalize(body).conversation)


def shuffle_keywords(tool: Body, random: Any) -> Body:
    """Disorder the fields around a schema and its keywords; what they hold keeps its order."""

    def disorder(value: Body) -> Body:
        names = list(value)
        random.shuffle(names)
        return {name: value[name] for name in names}

    def schema(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        below = dict(value)
        if isinstance(below.get("properties"), dict):
            below["properties"] = {name: schema(entry) for name, entry in below["properties"].items()}
        below |= {"anyOf": [schema(entry) for entry in below["anyOf"]]} if "anyOf" in below else {}
        below |= {"items": schema(below["items"])} if "items" in below else {}
        return disorder(below)

    function = dict(tool["function"])
    function |= {"parameters": schema(function["parameters"])} if "parameters" in function else {}
    return disorder({**tool, "function": disorder(function)})
