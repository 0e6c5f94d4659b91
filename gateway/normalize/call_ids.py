"""Ids of tool calls: they pair calls with results and mean nothing else, but some templates print them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from gateway import checks
from gateway.conversation import Conversation, Message
from gateway.normalize.params import string
from gateway.normalize.rule import Apply, Params, Rule, RuleClass, refuse_others
from gateway.normalize.tool_results import call_ids

DEFAULT_SHAPE = "call_{n}"
_FIELD = re.compile(r"\{(n|name)(?::(\d))?\}")


def canonical_call_ids() -> Rule:
    """Number the ids of tool calls by their place in the conversation, and rename their results with them.

    Parameter `shape`: how the model's template wants ids, with `{n}` for the number from 0 on, `{n:9}` for nine digits,
    `{name}` for the tool: `call_{n}` (default), `{n:9}`, `functions.{name}:{n}`. Where pairs are not certain (an id
    twice in one turn, a result without a call that has a new id by chance), nothing is renamed.
    """

    def build(params: Params) -> Apply:
        refuse_others(params, ("shape",))
        new_id = _shape(params.get("shape", DEFAULT_SHAPE))

        def apply(conversation: Conversation, _: object) -> Conversation:
            renamed = _renamed(conversation.messages, new_id)
            if renamed is None or all(new is old for new, old in zip(renamed, conversation.messages, strict=True)):
                return conversation
            return replace(conversation, messages=renamed)

        return apply

    return Rule("canonical_call_ids", 1, RuleClass.OPT_IN, build)


def _shape(value: object) -> Callable[[int, str], str]:
    shape = string("params.shape", value)
    names = [match[1] for match in _FIELD.finditer(shape)]
    if "n" not in names or set(_FIELD.sub("", shape)) & set("{}"):
        checks.refuse("params.shape", shape, "a text with {n}, such as call_{n} or {n:9}, and {name} where needed")

    def new_id(number: int, name: str) -> str:
        return _FIELD.sub(lambda field: name if field[1] == "name" else str(number).zfill(int(field[2] or 0)), shape)

    return new_id


def _renamed(messages: tuple[Message, ...], new_id: Callable[[int, str], str]) -> tuple[Message, ...] | None:
    """Rename all ids; None: it is not certain which result answers which call."""
    number = 0
    names: dict[str, str] = {}  # of the newest call that has an id
    given: set[str] = set()
    orphans: set[str] = set()
    renamed = []
    for message in messages:
        ids = call_ids(message)
        if len(set(ids)) < len(ids):
            return None
        if ids:
            calls = message.fields["tool_calls"]
            new = [new_id(number + place, call["function"]["name"]) for place, call in enumerate(calls)]
            number += len(calls)
            names.update(zip(ids, new, strict=True))
            given.update(new)
            message = _with_calls(message, new)
        elif message.role == "tool":
            old = message.fields.get("tool_call_id")
            if old in names:
                message = _with_result(message, names[old])
            else:
                orphans.add(str(old))
        renamed.append(message)
    return None if given & orphans else tuple(renamed)


def _with_calls(message: Message, ids: list[str]) -> Message:
    if ids == call_ids(message):
        return message
    calls = [{**call, "id": new} for call, new in zip(message.fields["tool_calls"], ids, strict=True)]
    return replace(message, fields={**message.fields, "tool_calls": calls})


def _with_result(message: Message, call_id: str) -> Message:
    if message.fields["tool_call_id"] == call_id:
        return message
    return replace(message, fields={**message.fields, "tool_call_id": call_id})
