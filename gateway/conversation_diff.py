"""Two conversations side by side, as lines of a unified diff: text as it reads, all else as indented JSON. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

Json = Mapping[str, Any]


def unified_diff(old: Json, new: Json, *, old_name: str, new_name: str) -> str:
    """Compare two chat bodies, as `conversation.body_of` prints them; empty: they are the same.

    Characters that do not show, line ends of other systems among them, are written as escapes.
    """
    lines = difflib.unified_diff(list(_lines(old)), list(_lines(new)), old_name, new_name, lineterm="")
    return "\n".join(map(_visible, lines))


def _lines(body: Json) -> Iterator[str]:
    for message in body.get("messages", ()):
        yield from _message_lines(message)
    if body.get("tools") == []:
        yield "--- no tools"
    for tool in body.get("tools", ()):
        yield f"--- tool {tool.get('function', {}).get('name', '')}".rstrip()
        yield from _json_lines(tool)
    others = {name: value for name, value in body.items() if name not in ("messages", "tools")}
    if others:
        yield "--- other fields"
        yield from _json_lines(others)


def _message_lines(message: Json) -> Iterator[str]:
    content = message.get("content")
    others = {name: value for name, value in message.items() if name not in ("role", "content")}
    yield f"--- {message['role']} {orjson.dumps(others).decode() if others else ''}".rstrip()
    if isinstance(content, str):
        yield from content.split("\n")
        return
    if content == []:
        yield "[]"
    for part in content or ():
        if part.keys() == {"type", "text"}:
            yield f"[{part['type']}]"
            yield from part["text"].split("\n")
        else:
            yield from _json_lines(part)


def _json_lines(value: Json) -> list[str]:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode().split("\n")


def _visible(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)
