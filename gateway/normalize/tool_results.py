"""The order of the results of tools that were called at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.conversation import Conversation, Message
from gateway.normalize.rule import Rule, safe


def order_tool_results_by_call() -> Rule:
    """Bring the tool results right behind an assistant turn into the order of its calls.

    They belong to calls by id alone, never by position: a result that answers no call of this turn stays behind the
    others, and where two calls have the same id nothing is moved.
    """

    def apply(conversation: Conversation) -> Conversation:
        messages = list(conversation.messages)
        changed = False
        for index, message in enumerate(messages):
            ids = call_ids(message)
            if len(ids) < 2 or len(set(ids)) < len(ids):
                continue
            end = end_of_results(messages, index + 1)
            places = {call_id: place for place, call_id in enumerate(ids)}
            results = messages[index + 1 : end]
            in_order = sorted(
                results, key=lambda result: places.get(result.fields.get("tool_call_id", ""), len(places))
            )
            if any(new is not old for new, old in zip(in_order, results, strict=True)):
                messages[index + 1 : end] = in_order
                changed = True
        return replace(conversation, messages=tuple(messages)) if changed else conversation

    return safe("order_tool_results_by_call", 1, apply, by_region=True)


def call_ids(message: Message) -> list[str]:
    """Return the ids of the tool calls of a turn, in order."""
    return [call["id"] for call in message.fields.get("tool_calls") or ()] if message.role == "assistant" else []


def end_of_results(messages: Sequence[Message], start: int) -> int:
    """Return where the run of tool results ends that begins at an index."""
    end = start
    while end < len(messages) and messages[end].role == "tool":
        end += 1
    return end
