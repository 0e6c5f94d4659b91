"""Gives the engine its own turns back: text, tool-call arguments and call ids as they were returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gateway.conversation import Conversation, Message
from gateway.normalize.recollection import Recollection
from gateway.normalize.rule import Mode, Rule, stateful
from gateway.normalize.turns import are_the_same_text, calls_of, rejoined, unless_printed_alike, with_fields


def echo_repair() -> Rule:
    """Replace an assistant turn by the equivalent one that was returned at its place.

    Content and calls are restored; results follow the ids of their calls. All other fields stay as they came, and so
    does a last message of the assistant: it is a beginning to be continued.
    """

    def apply(conversation: Conversation, memory: Recollection) -> Conversation:
        turns = memory.turns_of(conversation, same_head=False)
        if not turns:
            return conversation
        messages: list[Message] = []
        new_ids: Mapping[str, str] = {}
        for index, message in enumerate(conversation.messages):
            repaired = message
            if message.role == "tool":
                repaired = _answering(message, new_ids)
            elif calls_of(message) or index in turns:
                if index in turns:
                    repaired = _repaired(message, turns[index].message)
                new_ids = {
                    call["id"]: new["id"] for call, new in zip(calls_of(message), calls_of(repaired), strict=True)
                }
            messages.append(repaired)
        if all(new is old for new, old in zip(messages, conversation.messages, strict=True)):
            return conversation
        return replace(conversation, messages=tuple(messages))

    return stateful("echo_repair", 1, apply, Mode.ON)


def _repaired(message: Message, remembered: Message) -> Message:
    if are_the_same_text(message, remembered):
        return message
    calls, old = calls_of(message), calls_of(remembered)
    names = ["type", "id"] if _are_distinct(calls) and _are_distinct(old) else ["type"]
    fields = dict(remembered.fields)
    if calls:
        fields["tool_calls"] = [_call(call, was, names) for call, was in zip(calls, old, strict=True)]
    repaired = replace(
        message,
        content=rejoined(message.content, remembered.content),
        fields=with_fields(message.fields, fields, ["tool_calls"]),
    )
    return unless_printed_alike(repaired, message)


def _call(call: Mapping[str, Any], remembered: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    function = with_fields(call["function"], remembered["function"], ["arguments"])
    return with_fields({**call, "function": function}, remembered, names)


def _are_distinct(calls: Sequence[Mapping[str, Any]]) -> bool:
    """Whether ids tell which result belongs to which call."""
    return len({call["id"] for call in calls}) == len(calls)


def _answering(message: Message, new_ids: Mapping[str, str]) -> Message:
    old = message.fields["tool_call_id"]
    new = new_ids.get(old, old)
    return message if new == old else replace(message, fields={**message.fields, "tool_call_id": new})
