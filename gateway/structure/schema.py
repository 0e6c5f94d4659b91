"""Checks of a JSON schema before it is compiled: its size, and what no grammar can enforce, by path.

How dear a schema is to compile is the engine's business, which bounds it whatever it says. Here is only what would make
single tokens dear, and what is said better with a path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from gateway import checks
from gateway.errors import InvalidRequestError, shown

MAX_SCHEMA_BYTES = 131_072
MAX_LITERAL_CHARS = 4096
"""Of a name, a pattern or a fixed value. One of 10,000 characters takes 10 ms of a step, and all other answers wait."""

_SCHEMA = ("items", "additionalItems", "additionalProperties", "propertyNames", "not", "if", "then", "else", "contains")
_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
_UNSUPPORTED = frozenset(
    {
        "not",
        "if",
        "then",
        "else",
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
        "propertyNames",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "unevaluatedItems",
        "unevaluatedProperties",
        "$dynamicRef",
        "$dynamicAnchor",
        "$recursiveRef",
    }
)
_TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")


def check_schema(field: str, value: object, *, strict: bool) -> dict[str, Any]:
    """Accept a JSON schema.

    Args:
        field: of the schema in the body.
        value: what came.
        strict: True: refuse keywords and formats that cannot be enforced.

    Raises: InvalidRequestError: the first thing that is wrong.
    """
    schema = checks.mapping(field, value)
    checks.shallow(field, schema)
    num_bytes = len(orjson.dumps(schema))
    if num_bytes > MAX_SCHEMA_BYTES:
        raise InvalidRequestError(
            f"{field}: got a schema of {num_bytes} bytes, wanted at most {MAX_SCHEMA_BYTES}", param=field
        )
    if any(len(text) > MAX_LITERAL_CHARS for text in _literals(schema)):
        raise InvalidRequestError(
            f"{field}: got a name, pattern or value of more than {MAX_LITERAL_CHARS} characters, "
            f"wanted at most {MAX_LITERAL_CHARS}",
            param=field,
        )
    if "$schema" in schema:
        checks.text(f"{field}.$schema", schema["$schema"])
    for path, part in _parts(field, schema):
        _check_type(f"{path}.type", part.get("type", []))
        if strict:
            _check_supported(path, part)
    return schema


def _check_type(path: str, value: object) -> None:
    if not isinstance(value, list):
        checks.one_of(path, value, _TYPES)
        return
    for index, entry in enumerate(value):
        checks.one_of(f"{path}[{index}]", entry, _TYPES)


def _check_supported(path: str, part: dict[str, Any]) -> None:
    for keyword in part:
        if keyword in _UNSUPPORTED:
            where = f"{path}.{keyword}"
            raise InvalidRequestError(
                f"{where}: got a keyword that cannot be enforced, wanted a schema without it, or strict: false",
                param=where,
            )
    if "format" in part and part["format"] not in _FORMATS:
        checks.refuse(f"{path}.format", part["format"], f"one of {', '.join(_FORMATS)}, or strict: false")


def _parts(path: str, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a schema and all schemas in it, each with its path."""
    yield path, schema
    for keyword in _SCHEMA:
        if isinstance(part := schema.get(keyword), dict):
            yield from _parts(f"{path}.{keyword}", part)
    for keyword in _SCHEMAS:
        entries = schema.get(keyword)
        for index, part in enumerate(entries if isinstance(entries, list) else ()):
            if isinstance(part, dict):
                yield from _parts(f"{path}.{keyword}[{index}]", part)
    for keyword in _NAMED_SCHEMAS:
        named = schema.get(keyword)
        for name, part in named.items() if isinstance(named, dict) else ():
            if isinstance(part, dict):
                yield from _parts(f"{path}.{keyword}.{name if len(name) < 100 else shown(name)}", part)


def _literals(value: object) -> Iterator[str]:
    """Yield all names and texts but the words for people."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for entry in value:
            yield from _literals(entry)
    elif isinstance(value, dict):
        for name, entry in value.items():
            yield name
            if not (name in ("description", "title", "$comment") and isinstance(entry, str)):
                yield from _literals(entry)
