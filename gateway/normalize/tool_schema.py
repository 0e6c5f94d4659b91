"""The order in which a tool's fields and schema keywords are written, where it means nothing.

The names of properties keep their order, and so does every array that JSON Schema does not call a set: models answer in
the order they read. Schemas of answers (`response_format`) are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gateway.conversation import Conversation
from gateway.normalize.rule import Rule, safe
from gateway.normalize.schema import change_parameters, is_strict

_TOOL_FIELDS = ("type", "function")
_FUNCTION_FIELDS = ("name", "description", "parameters", "strict")
_KEYWORDS = (
    "$schema",
    "$id",
    "$ref",
    "type",
    "title",
    "description",
    "enum",
    "const",
    "format",
    "pattern",
    "properties",
    "items",
    "required",
    "additionalProperties",
    "default",
)
"""First, in the order in which most authors write them; all others follow by name."""
_SETS = ("required", "type")


def canonical_schema_keywords() -> Rule:
    """Write the fields around a tool and the keywords of its schemas in one fixed order."""
    in_order = _in_order(_KEYWORDS)
    function_in_order, tool_in_order = _in_order(_FUNCTION_FIELDS), _in_order(_TOOL_FIELDS)

    def change(tool: Mapping[str, Any]) -> Mapping[str, Any]:
        changed = change_parameters(tool, in_order)
        function = function_in_order(changed["function"])
        if function is not changed["function"]:
            changed = {**changed, "function": function}
        return tool_in_order(changed)

    return safe("canonical_schema_keywords", 1, _change_tools(change), by_region=True)


def sort_set_like_arrays() -> Rule:
    """Sort the arrays that JSON Schema calls sets; not in strict tools, whose schema binds to the letter."""

    def change(tool: Mapping[str, Any]) -> Mapping[str, Any]:
        return tool if is_strict(tool) else change_parameters(tool, _sorted_sets)

    return safe("sort_set_like_arrays", 1, _change_tools(change), by_region=True)


def _change_tools(
    change: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> Callable[[Conversation], Conversation]:
    def apply(conversation: Conversation) -> Conversation:
        tools = tuple(map(change, conversation.tools))
        if all(new is old for new, old in zip(tools, conversation.tools, strict=True)):
            return conversation
        return replace(conversation, tools=tools)

    return apply


def _in_order(first: Sequence[str]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    ranks = {name: rank for rank, name in enumerate(first)}

    def rank(name: str) -> tuple[int, str]:
        return ranks.get(name, len(ranks)), name

    def apply(fields: Mapping[str, Any]) -> Any:
        names = list(fields)
        in_order = sorted(names, key=rank)
        return fields if in_order == names else {name: fields[name] for name in in_order}

    return apply


def _sorted_sets(schema: dict[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {name: in_order for name in _SETS if (in_order := _sorted(schema.get(name))) is not None}
    needs = schema.get("dependentRequired")
    if isinstance(needs, dict):
        sorted_needs = {name: in_order for name, names in needs.items() if (in_order := _sorted(names)) is not None}
        changed |= {"dependentRequired": {**needs, **sorted_needs}} if sorted_needs else {}
    return {**schema, **changed} if changed else schema


def _sorted(value: Any) -> list[str] | None:
    """Sort an array of strings; None: it is none, or in order."""
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        return None
    in_order = sorted(value)
    return None if in_order == value else in_order
