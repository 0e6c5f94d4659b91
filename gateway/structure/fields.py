"""Reads `response_format`, as OpenAI has it, and `structured_outputs`, as vLLM has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from gateway import checks
from gateway.errors import InvalidRequestError
from gateway.structure.grammar import Structure, choice_grammar, regex_grammar, schema_grammar
from gateway.structure.schema import MAX_LITERAL_CHARS, MAX_SCHEMA_BYTES, check_schema

MAX_CHOICES = 1000
MAX_GRAMMAR_CHARS = 16_384
FIELDS = ("response_format", "structured_outputs")

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def structure_of(fields: Mapping[str, Any]) -> Structure | None:
    """Read what the answer must look like; None: like anything.

    Raises: InvalidRequestError: what is wrong first.
    """
    given = [name for name in FIELDS if name in fields]
    if len(given) > 1:
        raise InvalidRequestError(
            "structured_outputs: got it beside response_format, wanted one of them", param="structured_outputs"
        )
    if "response_format" in fields:
        return format_structure("response_format", fields["response_format"])
    if "structured_outputs" in fields:
        return _structured_outputs("structured_outputs", fields["structured_outputs"])
    return None


def format_structure(field: str, value: object) -> Structure | None:
    """Read OpenAI's `response_format`: text, json_object, or json_schema with a schema under that name.

    Raises: InvalidRequestError: what is wrong first.
    """
    options = checks.mapping(field, value)
    kind = checks.one_of(f"{field}.type", options.get("type"), ("text", "json_object", "json_schema"))
    if kind == "text":
        return None
    if kind == "json_object":
        return Structure(schema_grammar(_ANY_OBJECT), field)
    return named_schema_structure(f"{field}.json_schema", options.get("json_schema"))


def named_schema_structure(field: str, value: object) -> Structure:
    """Read an object with `schema` and, if it likes, `strict`, `name` and `description`.

    `/v1/responses` has one in `text.format` itself.

    Raises: InvalidRequestError: what is wrong first.
    """
    options = {name: entry for name, entry in checks.mapping(field, value).items() if entry is not None}
    checks.text(f"{field}.name", options.get("name", ""))
    strict = checks.boolean(f"{field}.strict", options.get("strict", False))
    schema = check_schema(f"{field}.schema", options.get("schema"), strict=strict)
    return Structure(schema_grammar(schema, strict=strict), f"{field}.schema")


def _structured_outputs(field: str, value: object) -> Structure | None:
    options = {
        name: entry for name, entry in checks.mapping(field, value).items() if entry is not None and entry is not False
    }
    for name in options:
        if name not in _KINDS:
            raise InvalidRequestError(
                f"{field}.{name}: unknown, wanted one of {', '.join(_KINDS)}", param=f"{field}.{name}"
            )
    if len(options) != 1:
        raise InvalidRequestError(f"{field}: got {len(options)} of {', '.join(_KINDS)}, wanted one", param=field)
    ((name, entry),) = options.items()
    return Structure(_KINDS[name](f"{field}.{name}", entry), f"{field}.{name}")


def _json(field: str, value: object) -> str:
    if isinstance(value, str):
        if len(value) > MAX_SCHEMA_BYTES:
            checks.refuse(field, value, f"at most {MAX_SCHEMA_BYTES} bytes")
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise InvalidRequestError(f"{field}: got a text that is no JSON: {error}", param=field) from error
    return schema_grammar(check_schema(field, value, strict=True))


def _json_object(field: str, value: object) -> str:
    checks.boolean(field, value)
    return schema_grammar(_ANY_OBJECT)


def _regex(field: str, value: object) -> str:
    return regex_grammar(_bounded(field, value, MAX_LITERAL_CHARS))


def _choice(field: str, value: object) -> str:
    entries = checks.sequence(field, value, least=1, most=MAX_CHOICES)
    return choice_grammar(
        [_bounded(f"{field}[{index}]", entry, MAX_LITERAL_CHARS) for index, entry in enumerate(entries)]
    )


def _grammar(field: str, value: object) -> str:
    """Lark, or the GBNF of llama.cpp, which the engine tells apart; but not llguidance's JSON, which has no bounds."""
    grammar = _bounded(field, value, MAX_GRAMMAR_CHARS)
    if grammar.lstrip().startswith("{"):
        checks.refuse(field, value, "a grammar in Lark or GBNF; schemas have fields of their own")
    return grammar


def _bounded(field: str, value: object, most: int) -> str:
    text = checks.text(field, value)
    if not 1 <= len(text) <= most:
        checks.refuse(field, value, f"1 to {most} characters")
    return text


_KINDS: Mapping[str, Callable[[str, object], str]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _json_object,
}
