"""Grammars as text, in the form that llguidance reads: JSON around a JSON schema, or Lark.

Source: llguidance's documentation of its JSON API, Lark variant and JSON schema support.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

_WHITESPACE = "[ ]"
"""Between two tokens of JSON there is one space or none: small models would go on with spaces and newlines for ever."""
_TO_ESCAPE = re.compile(r"(\\.)|/|\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Structure:
    """What an answer must look like."""

    grammar: str
    """For `Sampling.grammar`."""
    field: str
    """Of the client's body, for errors."""

    @property
    def is_json(self) -> bool:
        """Whether the grammar is written as JSON, around a schema; else it is text."""
        return self.grammar.startswith("{")


def schema_grammar(schema: Mapping[str, Any], *, strict: bool = True) -> str:
    """Return the grammar of all JSON texts that match a schema, properties in the schema's order.

    Args:
        schema: checked by `gateway.structure.schema`.
        strict: False: what cannot be enforced is left out of the schema.
    """
    options = {"whitespace_flexible": False, "whitespace_pattern": _WHITESPACE}
    if not strict:
        options |= {"lenient": True, "coerce_one_of": True}
    return orjson.dumps({"grammars": [{"json_schema": {**schema, "x-guidance": options}}]}).decode()


def regex_grammar(pattern: str) -> str:
    """Return the grammar of all texts that match a pattern of Rust's regular expressions as a whole."""
    return f"start: /{_TO_ESCAPE.sub(_escaped, pattern)}/"


def choice_grammar(choices: Sequence[str]) -> str:
    """Return the grammar of a few texts."""
    return "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


def _escaped(match: re.Match[str]) -> str:
    return {"/": "\\/", "\n": "\\n"}.get(match[0], match[0])
