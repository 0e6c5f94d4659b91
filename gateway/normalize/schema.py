"""A walk over the schemas in a JSON schema. Values that are data (enum, const, default, examples) are never entered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_SCHEMAS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SCHEMA = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)

SchemaChange = Callable[[dict[str, Any]], dict[str, Any]]
"""Of the keywords of one schema, those below it changed already; the same object where there is nothing to do."""


def change_schemas(schema: Any, change: SchemaChange) -> Any:
    """Change a schema and all below it, from the leaves up; the same object where nothing changed."""
    if not isinstance(schema, dict):
        return schema
    below = {keyword: _change_below(keyword, value, change) for keyword, value in schema.items()}
    return change(schema if _same_values(below, schema) else below)


def change_parameters(tool: Mapping[str, Any], change: SchemaChange) -> Mapping[str, Any]:
    """Change the schemas of a tool's parameters; the same object where nothing changed."""
    function = tool["function"]
    parameters = function.get("parameters")
    changed = change_schemas(parameters, change)
    return tool if changed is parameters else {**tool, "function": {**function, "parameters": changed}}


def is_strict(tool: Mapping[str, Any]) -> bool:
    """Whether the arguments of a tool are bound to the letter of its schema."""
    return tool.get("strict") is True or tool["function"].get("strict") is True


def _change_below(keyword: str, value: Any, change: SchemaChange) -> Any:
    if keyword in _NAMED_SCHEMAS and isinstance(value, dict):
        named = {name: change_schemas(entry, change) for name, entry in value.items()}
        return value if _same_values(named, value) else named
    if isinstance(value, list):
        if keyword not in _SCHEMAS and keyword != "items":
            return value
        listed = [change_schemas(entry, change) for entry in value]
        return value if all(new is old for new, old in zip(listed, value, strict=True)) else listed
    return change_schemas(value, change) if keyword in _SCHEMA else value


def _same_values(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    return all(new[name] is old[name] for name in old)
