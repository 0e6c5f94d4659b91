"""Fields around a tool that say nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateway.conversation import Conversation
from gateway.normalize.rule import Rule, safe

_NO_TOOLS = ("tools", "functions")
_UNSET_AS_NULL = frozenset(
    {
        "allowed_callers",
        "annotations",
        "defer_loading",
        "description",
        "eager_input_streaming",
        "input_examples",
        "output_schema",
        "parameters",
        "response",
        "strict",
        "title",
    }
)


def drop_empty_tools() -> Rule:
    """Say "no tools" in one way: by no list of them."""

    def apply(conversation: Conversation) -> Conversation:
        fields = conversation.fields
        empty = [name for name in _NO_TOOLS if fields.get(name) == []]
        if not empty:
            return conversation
        return replace(conversation, fields={name: fields[name] for name in fields if name not in empty})

    return safe("drop_empty_tools", 1, apply, by_region=True)


def drop_unset_tool_fields() -> Rule:
    """Drop known fields around a tool's schema that are null; explicit values and nulls inside the schema stay."""

    def apply(conversation: Conversation) -> Conversation:
        tools = tuple(map(_tool, conversation.tools))
        if all(new is old for new, old in zip(tools, conversation.tools, strict=True)):
            return conversation
        return replace(conversation, tools=tools)

    return safe("drop_unset_tool_fields", 1, apply, by_region=True)


def _tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    stripped, function = _set_fields(tool), _set_fields(tool["function"])
    return stripped if function is tool["function"] else {**stripped, "function": function}


def _set_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    if not any(value is None and name in _UNSET_AS_NULL for name, value in fields.items()):
        return fields
    return {name: value for name, value in fields.items() if value is not None or name not in _UNSET_AS_NULL}
