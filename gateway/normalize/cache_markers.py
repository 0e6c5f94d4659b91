"""Hints where a provider should cut its cache. They wander from turn to turn and are no part of what is said."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateway.conversation import Conversation, Message
from gateway.normalize.rule import Rule, safe

_MARKERS = frozenset({"cache_control", "cachePoint", "cache_point"})


def strip_cache_markers() -> Rule:
    """Drop cache breakpoints of the body, of messages, their parts and tool calls, and of tools; never of schemas."""

    def apply(conversation: Conversation) -> Conversation:
        messages = tuple(map(_message, conversation.messages))
        tools = tuple(map(_tool, conversation.tools))
        fields = _without(conversation.fields)
        if _all_same(messages, conversation.messages) and _all_same(tools, conversation.tools):
            return conversation if fields is conversation.fields else replace(conversation, fields=fields)
        return replace(conversation, messages=messages, tools=tools, fields=fields)

    return safe("strip_cache_markers", 1, apply, by_region=True)


def _message(message: Message) -> Message:
    content, fields = message.content, _without(message.fields)
    if isinstance(content, tuple):
        parts = tuple(map(_without, content))
        content = content if _all_same(parts, content) else parts
    calls = fields.get("tool_calls")
    if isinstance(calls, list) and not _all_same(stripped := [_without(call) for call in calls], calls):
        fields = {**fields, "tool_calls": stripped}
    if content is message.content and fields is message.fields:
        return message
    return replace(message, content=content, fields=fields)


def _tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    stripped, function = _without(tool), _without(tool["function"])
    return stripped if function is tool["function"] else {**stripped, "function": function}


def _without(value: Mapping[str, Any]) -> Mapping[str, Any]:
    if _MARKERS.isdisjoint(value):
        return value
    return {name: entry for name, entry in value.items() if name not in _MARKERS}


def _all_same(new: Any, old: Any) -> bool:
    return all(map(operator.is_, new, old))
