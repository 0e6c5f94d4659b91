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

    return safe("single_part_to_string", 1, apply, by_region=True)


def one_empty_content_form() -> Rule:
    """Write "no text" of an assistant turn in one way: null beside tool calls, else an empty string.

    These are the forms in which servers return them. An assistant message at the very end is what the model shall
    continue, and stays as it is.
    """

    def apply(conversation: Conversation) -> Conversation:
        *earlier, last = conversation.messages or (Message("user", ""),)
        if not any(map(_is_oddly_empty, earlier)):
            return conversation
        messages = tuple(
            replace(message, content=_empty_form(message)) if _is_oddly_empty(message) else message
            for message in earlier
        )
        return replace(conversation, messages=(*messages, last))

    return safe("one_empty_content_form", 1, apply, by_region=True)


def _is_single_part(message: Message) -> bool:
    content = message.content
    return isinstance(content, tuple) and len(content) == 1 and content[0].keys() == {"type", "text"}


def _empty_form(message: Message) -> str | None:
    return None if message.fields.get("tool_calls") else ""


def _is_oddly_empty(message: Message) -> bool:
    """Whether an assistant turn has no text and says so in another way."""
    if message.role != "assistant" or message.content:
        return False
    return message.content != _empty_form(message)
