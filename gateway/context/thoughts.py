"""Thoughts of old turns are cleared where a client asks for it."""

from __future__ import annotations

from dataclasses import replace

from gateway.context.clearing import Cleared
from gateway.context.fitted import Edit
from gateway.context.units import Counter
from gateway.conversation import Conversation, Message

KIND = "clear_thinking_20251015"
_THOUGHT = "reasoning_content"


def clear_thoughts(conversation: Conversation, keep: int, count: Counter) -> Cleared:
    """Leave out the thoughts of all turns but the last ones in which the assistant thought.

    A turn is all that comes between two messages of a user. What is kept moves with each turn that has thoughts: from
    there on the prompt is another one.

    Args:
        conversation: in canonical form.
        keep: so many turns.
        count: see `Counter`.
    """
    turns = _thoughtful_turns(conversation)
    old = turns[: max(0, len(turns) - keep)]
    if not old:
        return Cleared(conversation)
    messages, gain = list(conversation.messages), 0
    for index in (index for turn in old for index in turn):
        gain += count(str(messages[index].fields[_THOUGHT]))
        messages[index] = _without_thought(messages[index])
    last_said = max(index for index, message in enumerate(messages) if message.role == "assistant")
    is_new = turns[-1] == [last_said]
    return Cleared(replace(conversation, messages=tuple(messages)), (Edit(KIND, len(old), gain),), is_new)


def _thoughtful_turns(conversation: Conversation) -> list[list[int]]:
    """Give the messages that have thoughts, by turn; turns without any are left out."""
    turns: list[list[int]] = [[]]
    for index, message in enumerate(conversation.messages):
        if message.role == "user":
            turns.append([])
        elif message.role == "assistant" and message.fields.get(_THOUGHT):
            turns[-1].append(index)
    return [turn for turn in turns if turn]


def _without_thought(message: Message) -> Message:
    return replace(message, fields={name: value for name, value in message.fields.items() if name != _THOUGHT})
