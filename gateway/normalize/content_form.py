"""Rules about the form in which content is written, not about its text."""

from __future__ import annotations

from dataclasses import replace

from gateway.conversation import Conversation, Message, texts_of
from gateway.normalize.rule import Rule, safe


def single_part_to_string() -> Rule:
    """Write a list of one text part as a string, in every role: the text stays byte for byte.

    Several parts stay apart: only the template may join them, for only it knows how.
    """

    def apply(conversation: Conversation) -> Conversation:
        if not any(map(_is_single_part, conversation.messages)):
            return conversation
        messages = tuple(
            replace(message, content=texts_of(message.content)[0]) if _is_single_part(message) else message
            for message in conversation.messages
        )
        return replace(conversation, messages=messages)

    return safe("single_part_to_string", 1, apply)


def _is_single_part(message: Message) -> bool:
    content = message.content
    return isinstance(content, tuple) and len(content) == 1 and content[0].keys() == {"type", "text"}
