"""Two versions of a prompt side by side, as lines of a unified diff."""

from __future__ import annotations

import difflib

import orjson


def unified_diff(old: str, new: str, *, old_name: str, new_name: str) -> list[str]:
    """Compare two canonical forms line by line: text as it reads, all else as indented JSON."""
    return list(difflib.unified_diff(_lines(old), _lines(new), old_name, new_name, lineterm=""))


def _lines(canonical: str) -> list[str]:
    body = orjson.loads(canonical)
    lines: list[str] = []
    for message in body["messages"]:
        content = message.pop("content", None)
        parts = [content] if isinstance(content, str) else [part["text"] for part in content or ()]
        role = message.pop("role")
        lines.append(f"--- {role} {orjson.dumps(message).decode() if message else ''}".rstrip())
        for part in parts:
            lines += part.split("\n")
    for tool in body.get("tools", ()):
        lines += [f"--- tool {tool['function']['name']}"]
        lines += orjson.dumps(tool, option=orjson.OPT_INDENT_2).decode().split("\n")
    return lines
