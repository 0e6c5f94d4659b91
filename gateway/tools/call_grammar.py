"""Grammars that let an answer be calls of tools and nothing else, or text in which calls are right, in llguidance's Lark.

Calls are written as chat templates print them, with one blank behind a comma and a colon: so the answer's own tokens can
stand in the history, and a small model cannot lose itself in white space.

Source: llguidance, docs/syntax.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from gateway.tools import thoughts
from gateway.tools.formats import CallFormat

_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}
"""Of arguments; what llguidance does not know of a schema is left to the model, as it is without a grammar."""
_ANY_OBJECT: Mapping[str, Any] = {"x-guidance": _STYLE, "type": "object"}

_NOT_IN_NAMES = re.compile("[^a-z0-9_]")
"""Of the rules of a grammar."""
TokenOf = Callable[[str], int | None]
"""Gives the special token that a text is; None: it is written in ordinary tokens."""


def call_grammar(
    form: CallFormat,
    tools: Sequence[Mapping[str, Any]],
    token_of: TokenOf,
    *,
    is_parallel: bool,
    thinking: str = "none",
    instead: str | None = None,
) -> str:
    """Write the grammar of calls.

    Args:
        form: how the model writes calls.
        tools: that may be called, as OpenAI's clients send them.
        token_of: the model's.
        is_parallel: several calls may follow one another; where the format has no way to, one.
        thinking: `begun`: the prompt ends within a thought; `may`: one may come first; `none`.
        instead: a grammar, as JSON, of what the answer may be in place of calls, if they have a mark; None: nothing.
    """
    body = f"{'' if form.may_be_bare else 'opening '}{_behind(form, is_parallel=is_parallel)}"
    if is_parallel and not form.may_be_bare and not form.is_list:
        body = f"{body} ({_text(form.blank)} {body})*"
    if instead is not None:
        body = f"(@instead | {body})"
    schemas = [_schema(tool["function"]) for tool in tools]
    lines = [f"start: {_THINKING[thinking]}{body}", f"opening: {_mark(form.opening, token_of)}"]
    lark = "\n".join([*lines, *_calls(form, tools, schemas, token_of), *_thoughts(thinking, token_of)]) + "\n"
    if instead is None:
        return lark
    (other,) = orjson.loads(instead)["grammars"]
    return orjson.dumps({"grammars": [{"lark_grammar": lark}, {"name": "instead", **other}]}).decode()


def strict_grammar(
    form: CallFormat, tools: Sequence[Mapping[str, Any]], token_of: TokenOf, *, thinking: str = "none"
) -> str:
    """Write the grammar of any text in which the calls of strict tools match their schemas.

    Args: as those of `call_grammar`; the format has a mark before every call.
    """
    mark = re.escape(form.opening).replace("/", "\\/")
    token_id = token_of(form.opening)
    schemas = [_schema(tool["function"]) if is_strict(tool) else _ANY_OBJECT for tool in tools]
    lines = [
        f"start: {_THINKING[thinking]}(before {_behind(form, is_parallel=True)})* free?",
        f"before[lazy]: /(?s:.*){mark}/" if token_id is None else f"before: free? <[{token_id}]>",
        "free: FREE",
        f"FREE: /(?s:.*)/ & ~/(?s:.*){mark}(?s:.*)/",
    ]
    return "\n".join([*lines, *_calls(form, tools, schemas, token_of), *_thoughts(thinking, token_of)]) + "\n"


def is_strict(tool: Mapping[str, Any]) -> bool:
    """Whether a client wants the arguments to match the tool's schema whatever the choice is."""
    return tool["function"].get("strict") is True


def _calls(
    form: CallFormat, tools: Sequence[Mapping[str, Any]], schemas: Sequence[Mapping[str, Any]], token_of: TokenOf
) -> Iterator[str]:
    yield f"closing: {_mark(form.closing, token_of)}"
    yield "call: " + " | ".join(f"call_{number}" for number in range(len(tools)))
    for number, (tool, schema) in enumerate(zip(tools, schemas, strict=True)):
        name = orjson.dumps(tool["function"]["name"]).decode()
        head = _text(f'{{"name": {name}, "{form.arguments}": ')
        arguments = f"arguments_{number}_of_{_NOT_IN_NAMES.sub('_', tool['function']['name'].lower())}"  # errors say it
        yield f"call_{number}: {head} {arguments} {_text('}')}"
        yield f"{arguments}: %json {orjson.dumps(schema).decode()}"


def _thoughts(thinking: str, token_of: TokenOf) -> Iterator[str]:
    if thinking != "none":
        yield f"think: {_mark(thoughts.OPENING, token_of)}"
        yield "blanks: /\\n*/"
        end = token_of(thoughts.CLOSING)
        yield "thought[lazy]: /(?s:.*)<\\/think>/" if end is None else f"thought: /(?s:.*)/ <[{end}]>"


_THINKING = {"none": "", "begun": "thought blanks ", "may": "(think thought blanks)? "}


def _behind(form: CallFormat, *, is_parallel: bool) -> str:
    """Give what follows an opening."""
    if form.may_be_bare:  # the family's models write one call, and no mark before it
        return "call"
    if form.is_list:
        more = f" ({_text(form.separator + ' ')} call)*" if is_parallel else ""
        return f"{_text('[')} call{more} closing"
    blank = _text(form.blank)
    return f"{blank} call {blank} closing"


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
