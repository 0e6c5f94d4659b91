"""A grammar that lets an answer be calls of tools and nothing else, in llguidance's Lark.

Calls are written as chat templates print them, with one blank behind a comma and a colon: so the answer's own tokens can
stand in the history, and a small model cannot lose itself in white space.

Source: llguidance, docs/syntax.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from gateway.tools import thoughts
from gateway.tools.formats import CallFormat

_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}
"""Of arguments; what llguidance does not know of a schema is left to the model, as it is without a grammar."""

TokenOf = Callable[[str], int | None]
"""Gives the special token that a text is; None: it is written in ordinary tokens."""


def call_grammar(
    form: CallFormat,
    tools: Sequence[Mapping[str, Any]],
    token_of: TokenOf,
    *,
    is_parallel: bool,
    thinking: str = "none",
) -> str:
    """Write the grammar.

    Args:
        form: how the model writes calls.
        tools: that may be called, as OpenAI's clients send them.
        token_of: the model's.
        is_parallel: several calls may follow one another; where the format has no way to, one.
        thinking: `begun`: the prompt ends within a thought; `may`: one may come first; `none`.
    """
    lines = [f"start: {_THINKING[thinking]}{_body(form, is_parallel=is_parallel)}"]
    lines.append(f"opening: {_mark(form.opening, token_of)}")
    lines.append(f"closing: {_mark(form.closing, token_of)}")
    lines.append("call: " + " | ".join(f"call_{number}" for number in range(len(tools))))
    for number, tool in enumerate(tools):
        function = tool["function"]
        name = orjson.dumps(function["name"]).decode()
        head = _text(f'{{"name": {name}, "{form.arguments}": ')
        lines.append(f"call_{number}: {head} arguments_{number} {_text('}')}")
        lines.append(f"arguments_{number}: %json {orjson.dumps(_schema(function)).decode()}")
    if thinking != "none":
        lines.append(f"think: {_mark(thoughts.OPENING, token_of)}")
        lines.append("blanks: /\\n*/")
        end = token_of(thoughts.CLOSING)
        lines.append("thought[lazy]: /(?s:.*)<\\/think>/" if end is None else f"thought: /(?s:.*)/ <[{end}]>")
    return "\n".join(lines) + "\n"


_THINKING = {"none": "", "begun": "thought blanks ", "may": "(think thought blanks)? "}


def _body(form: CallFormat, *, is_parallel: bool) -> str:
    if form.may_be_bare:  # the family's models write one call, and no mark before it
        return "call"
    if form.is_list:
        more = f" ({_text(form.separator + ' ')} call)*" if is_parallel else ""
        return f"opening {_text('[')} call{more} closing"
    blank = _text(form.blank)
    marked = f"opening {blank} call {blank} closing"
    return f"{marked} ({blank} {marked})*" if is_parallel else marked


def _schema(function: Mapping[str, Any]) -> dict[str, Any]:
    """Give the schema of the arguments: an object, and where its members are listed, of no others."""
    schema = {"type": "object", **(function.get("parameters") or {"properties": {}})}
    if "properties" in schema:
        schema = {"additionalProperties": False, **schema}
    return {"x-guidance": _STYLE, **schema}


def _mark(text: str, token_of: TokenOf) -> str:
    token_id = token_of(text)
    return _text(text) if token_id is None else f"<[{token_id}]>"


def _text(text: str) -> str:
    return orjson.dumps(text).decode()
