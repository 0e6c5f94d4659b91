"""The readable reference of the call parser: a whole text at once, by Python's own JSON reader."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from gateway.chat_messages import MAX_NAME_CHARS
from gateway.tools.formats import CallFormat


@dataclass
class WholeCalls:
    """What a text says."""

    texts: list[str] = field(default_factory=list)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    """Name and arguments."""
    num_call_chars: int = 0
    """Of the calls with their marks and the blanks around them."""


class _Object(tuple[tuple[str, Any], ...]):
    """Name and value of each member, in order."""

    __slots__ = ()


def _no_constant(name: str) -> None:
    raise ValueError(name)


_DECODER = json.JSONDecoder(object_pairs_hook=_Object, parse_constant=_no_constant)


def loads(text: str) -> Any:
    """Read JSON strictly, so that order and repeated names count."""
    return _DECODER.decode(text)


def read_whole(text: str, form: CallFormat, tools: Collection[str]) -> WholeCalls:
    """Read a text."""
    found = WholeCalls()
    place = 0
    if form.may_be_bare:
        place = _calls(text, 0, form, tools, found, is_bare=True) or 0
    while (mark := text.find(form.opening, place)) >= 0:
        behind = mark + len(form.opening)
        start = place + len(text[place:mark].rstrip())
        begin = _blanks(text, behind)
        if form.is_list:
            begin = _blanks(text, begin + 1) if text[begin : begin + 1] == "[" else len(text)
        end = _calls(text, begin, form, tools, found, is_bare=False)
        found.texts.append(text[place : behind if end is None else start])
        if end is not None:
            found.num_call_chars += begin - start
        place = behind if end is None else end
    found.texts.append(text[place:])
    return found


def _calls(
    text: str, start: int, form: CallFormat, tools: Collection[str], found: WholeCalls, *, is_bare: bool
) -> int | None:
    """Read calls that follow one another. Returns: where they end; None: there are none."""
    end = None
    place = _blanks(text, start)
    while (call := _call(text, place, tools, is_bare=is_bare)) is not None:
        name, arguments, end = call
        found.calls.append((name, arguments))
        place = _blanks(text, end)
        if form.closing and (text.startswith(form.closing, place) or form.closing.startswith(text[place:])):
            end = _blanks(text, place + len(form.closing))
            break
        end = place
        if form.separator and text.startswith(form.separator, place):
            place = _blanks(text, place + len(form.separator))
        elif form.may_be_bare:
            is_bare = True
        else:
            break
    if end is not None:
        end = min(end, len(text))
        found.num_call_chars += end - start
    return end


def _call(text: str, place: int, tools: Collection[str], *, is_bare: bool) -> tuple[str, Any, int] | None:
    if text[place : place + 1] != "{":
        return None
    try:
        value, end = _DECODER.raw_decode(text, place)
    except ValueError:
        return None
    members = [("arguments" if name in ("arguments", "parameters") else name, entry) for name, entry in value]
    fields = dict(members)
    name = fields.get("name")
    if len(fields) < len(members) or not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
        return None
    if is_bare and (name not in tools or "arguments" not in fields):
        return None
    arguments = fields.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = loads(arguments)
        except ValueError:
            return None
    elif arguments is None:
        arguments = _Object()
    return (name, arguments, end) if isinstance(arguments, _Object) else None


def _blanks(text: str, place: int) -> int:
    return place + len(text[place:]) - len(text[place:].lstrip())
