"""Assistant turns that come back from clients: equivalent ones and edited ones, and one way to normalize them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from gateway.chat_request import conversation_of
from gateway.conversation import body_of
from gateway.normalize.content_form import single_part_to_string
from gateway.normalize.echo_repair import echo_repair
from gateway.normalize.first_seen import first_seen
from gateway.normalize.history import remember_history
from gateway.normalize.memory import TurnMemory
from gateway.normalize.reasoning import reasoning_restore
from gateway.normalize.recollection import Recollection
from gateway.normalize.registry import Choice, Normalized, RuleRegistry, RuleSet
from gateway.normalize.rule import Context, Mode, Rule
from gateway.normalize.rules import built_in_rules

Body = dict[str, Any]

STATEFUL = (single_part_to_string(), first_seen(), echo_repair(), reasoning_restore())
"""Alone, so that no other rule repairs what they should."""


def rules(*on: str, off: Sequence[str] = (), among: Sequence[Rule] = STATEFUL) -> RuleSet:
    """Some rules as they are by default, some of them on, some off."""
    choices = {**dict.fromkeys(on, Choice(Mode.ON)), **dict.fromkeys(off, Choice(Mode.OFF))}
    return RuleRegistry(among).rule_set(choices)


def all_rules(*on: str, off: Sequence[str] = ()) -> RuleSet:
    """The same with all other rules."""
    return rules(*on, off=off, among=built_in_rules().rules)


def normalize(
    body: Body,
    history: Sequence[Body] = (),
    *,
    rule_set: RuleSet | None = None,
    memory: TurnMemory | None = None,
    scope: str = "tenant:a",
) -> Normalized:
    """Normalize a body, after others whose assistant turns count as returned."""
    memory, rule_set = memory or TurnMemory(), rule_set or rules()
    remember_history([conversation_of(past) for past in history], rule_set, memory=memory, scope=scope)
    return rule_set.normalize(conversation_of(body), Context(scope, Recollection(memory, scope)))


def printed(result: Normalized) -> list[str]:
    """The canonical messages as they are forwarded: the order of keys counts."""
    return [json.dumps(message) for message in body_of(result.conversation)["messages"]]


_text = st.text(st.sampled_from("ab \n\t{}é€\u00a0"), max_size=12)
_numbers = st.sampled_from(["5", "5.0", "-0", "1e0", "1E0", "12345678901234567890", "0.10"])
_trees = st.recursive(
    st.one_of(_text, _numbers.map(lambda text: {"#": text}), st.sampled_from([True, False, None])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)),
    max_leaves=6,
)
argument_trees = st.dictionaries(st.sampled_from(["part", "store", "é"]), _trees, max_size=3)
"""Arguments of a call; a number is written as `{"#": its text}`."""


def write_json(tree: Any, *, tight: bool = False, backwards: bool = False, ascii_only: bool = False) -> str:
    """Print a tree of arguments in one of the ways that clients do."""
    comma, colon = (",", ":") if tight else (", ", ": ")
    options = {"tight": tight, "backwards": backwards, "ascii_only": ascii_only}
    if isinstance(tree, dict) and tree.keys() == {"#"}:
        return str(tree["#"])
    if isinstance(tree, dict):
        items = [
            json.dumps(key, ensure_ascii=ascii_only) + colon + write_json(entry, **options)
            for key, entry in tree.items()
        ]
        return "{" + comma.join(reversed(items) if backwards else items) + "}"
    if isinstance(tree, list):
        return "[" + comma.join(write_json(entry, **options) for entry in tree) + "]"
    return json.dumps(tree, ensure_ascii=ascii_only)


@st.composite
def assistant_turns(draw: st.DrawFn, number: int) -> list[Body]:
    """A turn that is returned, and the results of its calls."""
    trees = draw(st.lists(argument_trees, max_size=2))
    turn: Body = {"role": "assistant", "content": draw(_text)}
    if draw(st.booleans()):
        turn["reasoning_content"] = "Because " + draw(_text)
    if trees:
        turn["content"] = draw(st.sampled_from([None, "", "\n\n", "Let me see. "]))
        names = draw(st.lists(st.sampled_from(["stock", "price"]), min_size=len(trees), max_size=len(trees)))
        turn["tool_calls"] = [
            {
                "id": f"call_{number}{index}",
                "type": "function",
                "function": {"name": name, "arguments": write_json(tree)},
            }
            for index, (name, tree) in enumerate(zip(names, trees, strict=True))
        ]
    results = [
        {"role": "tool", "tool_call_id": f"call_{number}{index}", "content": draw(_text)} for index in range(len(trees))
    ]
    return [turn, *results]


@st.composite
def bodies(draw: st.DrawFn) -> Body:
    """A chat whose last message is not the assistant's."""
    messages = [{"role": "system", "content": "Be kind."}] if draw(st.booleans()) else []
    for number in range(draw(st.integers(1, 3))):
        messages += [{"role": "user", "content": draw(_text)}, *draw(assistant_turns(number))]
    return {"model": "demo", "messages": [*messages, {"role": "user", "content": "And?"}]}


def echoed(body: Body, change: Callable[[Body], None]) -> Body:
    """A copy with every assistant turn changed."""
    copied = copy.deepcopy(body)
    for message in copied["messages"]:
        if message["role"] == "assistant":
            change(message)
    return copied


def trim(turn: Body) -> None:
    turn["content"] = (turn.get("content") or "").rstrip()


def pad(turn: Body) -> None:
    turn["content"] = (turn.get("content") or "") + " \n"


def empty_as_null(turn: Body) -> None:
    turn["content"] = turn.get("content") or None


def empty_left_out(turn: Body) -> None:
    if not turn.get("content"):
        turn.pop("content", None)


def say_that_there_are_no_calls(turn: Body) -> None:
    turn.setdefault("tool_calls", [])


def drop_reasoning(turn: Body) -> None:
    turn.pop("reasoning_content", None)


def empty_reasoning(turn: Body) -> None:
    turn["reasoning_content"] = ""


def other_spelling(turn: Body) -> None:
    if "reasoning_content" in turn:
        turn["reasoning"] = turn.pop("reasoning_content").rstrip()


def other_order_of_fields(turn: Body) -> None:
    for name in sorted(turn):
        turn[name] = turn.pop(name)


def write_anew(**options: bool) -> Callable[[Body], None]:
    """Print the arguments of every call in another way."""

    def change(turn: Body) -> None:
        for call in turn.get("tool_calls") or ():
            tree = _read(call["function"]["arguments"])
            call["function"]["arguments"] = write_json(tree, **options)

    return change


def _read(text: str) -> Any:
    def number(text: str) -> Body:
        return {"#": text}

    return json.loads(text, parse_int=number, parse_float=number)


def other_ids(body: Body) -> Body:
    """A copy with all call ids made up anew."""
    copied = copy.deepcopy(body)
    for message in copied["messages"]:
        for call in message.get("tool_calls") or ():
            call["id"] = f"x{call['id']}x"
        if "tool_call_id" in message:
            message["tool_call_id"] = f"x{message['tool_call_id']}x"
    return copied


EQUIVALENT = [
    trim,
    pad,
    empty_as_null,
    empty_left_out,
    say_that_there_are_no_calls,
    drop_reasoning,
    empty_reasoning,
    other_spelling,
    other_order_of_fields,
    write_anew(tight=True),
    write_anew(backwards=True, ascii_only=True),
]
