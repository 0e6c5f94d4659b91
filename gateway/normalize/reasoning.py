"""Gives the engine its own reasoning back, which many clients drop from the turns that they send again."""

from __future__ import annotations

from dataclasses import replace

from gateway.conversation import Conversation, Message
from gateway.normalize.recollection import Recollection
from gateway.normalize.rule import Mode, Rule, stateful
from gateway.normalize.turns import (
    REASONING_FIELDS,
    are_the_same_text,
    rejoined,
    thoughts,
    unless_printed_alike,
    with_fields,
)


def reasoning_restore() -> Rule:
    """Put back what the model thought before an equivalent turn, at the same place and under the same system head.

    Reasoning that the client sends and that says something else is its own, and stays. Whether the prompt shows any is
    the template's affair: one that drops reasoning keeps dropping it.
    """

    def apply(conversation: Conversation, memory: Recollection) -> Conversation:
        turns = memory.turns_of(conversation, same_head=True)
        restored = {index: _restored(conversation.messages[index], turn.message) for index, turn in turns.items()}
        if all(message is conversation.messages[index] for index, message in restored.items()):
            return conversation
        messages = tuple(restored.get(index, message) for index, message in enumerate(conversation.messages))
        return replace(conversation, messages=messages)

    return stateful("reasoning_restore", 1, apply, Mode.ON)


def _restored(message: Message, remembered: Message) -> Message:
    if are_the_same_text(message, remembered):
        return message
    sent = thoughts(message)
    if sent and sent != thoughts(remembered):
        return message
    restored = replace(
        message,
        content=rejoined(remembered.content, message.content),
        fields=with_fields(message.fields, remembered.fields, REASONING_FIELDS),
    )
    return unless_printed_alike(restored, message)
