"""Fields of messages that servers return and clients echo, although they say nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateway.conversation import Conversation, Message
from gateway.normalize.rule import Rule, safe

_SAY_NOTHING_AS_NULL = frozenset(
    {
        "annotations",
        "audio",
        "function_call",
        "images",
        "logprobs",
        "name",
        "provider_specific_fields",
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "refusal",
        "thinking_blocks",
        "tool_call_id",
        "tool_calls",
    }
)
_SAY_NOTHING_WHEN_EMPTY = frozenset({"annotations", "images", "reasoning_details", "thinking_blocks", "tool_calls"})
"""As empty lists. An empty text of reasoning is another thing: templates print an empty block for it."""


def drop_null_message_fields() -> Rule:
    """Drop known fields of messages that are null, and known lists that are empty; unknown fields stay."""

    def apply(conversation: Conversation) -> Conversation:
        if not any(map(_says_nothing_somewhere, conversation.messages)):
            return conversation
        return replace(conversation, messages=tuple(map(_stripped, conversation.messages)))

    return safe("drop_null_message_fields", 1, apply, by_region=True)


def _says_nothing(name: str, value: Any) -> bool:
    return (value is None and name in _SAY_NOTHING_AS_NULL) or (value == [] and name in _SAY_NOTHING_WHEN_EMPTY)


def _says_nothing_somewhere(message: Message) -> bool:
    if any(_says_nothing(name, value) for name, value in message.fields.items()):
        return True
    parts = message.content if isinstance(message.content, tuple) else ()
    return any(_says_nothing(name, value) for part in parts for name, value in part.items())


def _stripped(message: Message) -> Message:
    if not _says_nothing_somewhere(message):
        return message
    content = message.content
    if isinstance(content, tuple):
        content = tuple(map(_kept, content))
    return replace(message, content=content, fields=_kept(message.fields))


def _kept(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in fields.items() if not _says_nothing(name, value)}
