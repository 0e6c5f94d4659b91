"""Finds in a rendered prompt what of it came from which tool: as it was printed as JSON, else by its texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gateway.region_page import CharSpan, Page, leaves, printed_forms, text_of
from gateway.tool_prints import PrintedArray, prints_of

_MIN_LEAF_CHARS = 4
_NEAR_CHARS = 400
_BEGINNING_CHARS = 40
_KEYWORDS = frozenset({"type", "properties", "required", "description", "object", "string", "items", "enum"})
"""Of schemas; they stand everywhere."""


def find_tools(page: Page, tools: PrintedArray) -> list[CharSpan | None]:
    """Find all tools: as JSON in the styles in which they were printed, else by their names and descriptions."""
    found: list[CharSpan | None] = []
    end = 0
    for tool in tools:
        span = page.find_any(_tool_forms(tool, tools), end, len(page.text))
        found.append(span)
        end = span[1] if span else end
    return found if any(found) else _find_signatures(page, tools)


def _tool_forms(tool: Any, tools: PrintedArray) -> Iterator[str]:
    for value in (tool, tool["function"]):
        yield from prints_of(value).values()
    for ensure_ascii, indent, separators, sort_keys in prints_of(tools):
        text = json.dumps(tool, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        yield text.replace("\n", "\n" + " " * indent) if isinstance(indent, int) else text
    yield str(tool)
    yield str(tool["function"])


def _find_signatures(page: Page, tools: PrintedArray) -> list[CharSpan | None]:
    """Find tools that a template prints in a language of its own: from the name to the last text of the schema."""
    beginnings: list[CharSpan | None] = []
    end = 0
    for tool in tools:
        function = tool["function"]
        beginning = _find_beside(page, function["name"], text_of(function.get("description")), end)
        beginnings.append(beginning)
        end = beginning[1] if beginning else end
    found: list[CharSpan | None] = []
    for index, (tool, beginning) in enumerate(zip(tools, beginnings, strict=True)):
        if beginning is None:
            found.append(None)
            continue
        high = next((other[0] for other in beginnings[index + 1 :] if other), len(page.text))
        start, end = beginning
        for leaf in leaves(list(tool["function"].values())):
            if leaf in _KEYWORDS:
                continue
            span = page.find_any(printed_forms(leaf), start, min(high, end + _NEAR_CHARS + len(leaf)))
            end = max(end, span[1]) if span and len(leaf) >= _MIN_LEAF_CHARS else end
        found.append((start, end) if end > start else None)
    return found


def _find_beside(page: Page, name: str, description: str, low: int) -> CharSpan | None:
    """Find a tool's beginning: its description, which is rarer, and its name shortly before or behind it."""
    beginning = description.strip()[:_BEGINNING_CHARS].partition("\n")[0]
    if len(beginning) < _MIN_LEAF_CHARS:
        start = page.find(name, low, len(page.text))
        return (start, start + len(name)) if start >= 0 else None
    near = page.find(beginning, low, len(page.text))
    if near < 0:
        return None
    start = page.find_last(name, max(low, near - _NEAR_CHARS), near)
    if start >= 0:
        return start, start + len(name)
    is_named = page.find(name, near, min(near + _NEAR_CHARS, len(page.text))) >= 0
    return (near, near + len(beginning)) if is_named else None
