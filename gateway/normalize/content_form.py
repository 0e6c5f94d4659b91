"""Rules about the form in which content is written, not about its text."""

from __future__ import annotations

from dataclasses import replace

from gateway.conversation import Conversation, Message
from gateway.normalize.registry import Rule, RuleClass


def single_part_to_string() -> Rule:
    """Write a list of one text part as a string, in every role: the text stays byte for byte.

    Several parts stay apart: only the template may join them, for only it knows how.
    """

    def apply(conversation: Conversation) -> Conversation:
        if not any(map(_is_single_part, conversation.messages)):
            return conversation
        messages = tuple(
            replace(message, content=message.content[0]) if _is_single_part(message) and message.content else message
            for message in conversation.messages
        )
        return replace(conversation, messages=messages)

    return Rule("single_part_to_string", 1, RuleClass.SAFE, apply)


def _is_single_part(message: Message) -> bool:
    return isinstance(message.content, tuple) and len(message.content) == 1
