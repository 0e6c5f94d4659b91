"""Accounting lines that coding clients put in front of the system text: for a provider's books, not for the model."""

from __future__ import annotations

import re
from dataclasses import replace

from gateway.conversation import Conversation, Message
from gateway.normalize.head_text import AROUND
from gateway.normalize.rule import Rule, safe

_FIELD = r"[ \t]*cc[a-z_]{0,32}=[^;\s]{0,128}(?:;|(?=[ \t]*\r*(?:\n|\Z)))"
_HEADERS = (re.compile(rf"x-anthropic-billing-header:(?:{_FIELD}){{1,16}}(?:[ \t]*\r*(?:\n|\Z))?"),)
"""The allow-list. A header ends with its last field, for the prompt itself may follow on the same line."""


def strip_client_header() -> Rule:
    """Drop an allow-listed accounting line at the very start of the leading system text, and nothing behind it."""

    def apply(conversation: Conversation) -> Conversation:
        messages = conversation.messages
        while messages and conversation.num_head_messages and (rest := _stripped(messages[0])) is not messages[0]:
            messages = messages[1:] if _is_empty(rest) and len(messages) > 1 else (rest, *messages[1:])
            conversation = replace(conversation, messages=messages)
        return conversation

    return safe("strip_client_header", 1, apply, by_region=True)


def _stripped(message: Message) -> Message:
    """Strip one header; the same object where there is none."""
    content = message.content
    if isinstance(content, tuple):
        if not content or content[0]["type"] != "text" or (rest := _without_header(content[0]["text"])) is None:
            return message
        first = {**content[0], "text": rest}
        says_nothing = not rest and first.keys() == {"type", "text"}  # it goes with its header
        return replace(message, content=(content[1:] or "") if says_nothing else (first, *content[1:]))
    rest = None if content is None else _without_header(content)
    return message if rest is None else replace(message, content=rest)


def _without_header(text: str) -> str | None:
    """Look past what other rules drop from the start."""
    start = len(text) - len(text.lstrip(AROUND))
    for header in _HEADERS:
        if match := header.match(text, start):
            rest = text[:start] + text[match.end() :]
            return rest if rest.strip(AROUND) else ""
    return None


def _is_empty(message: Message) -> bool:
    return not message.content and not message.fields
