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
    starts: list[int] = []
    end = 0
    for tool in tools:
        function = tool["function"]
        start = _find_beside(page, function["name"], text_of(function.get("description")), end)
        starts.append(start)
        end = start + len(function["name"]) if start >= 0 else end
    found: list[CharSpan | None] = []
    for index, (tool, start) in enumerate(zip(tools, starts, strict=True)):
        if start < 0:
            found.append(None)
            continue
        high = next((other for other in starts[index + 1 :] if other >= 0), len(page.text))
        end = start
        for leaf in leaves(list(tool["function"].values())):
            if leaf in _KEYWORDS:
                continue
            span = page.find_any(printed_forms(leaf), start, min(high, end + _NEAR_CHARS + len(leaf)))
            end = max(end, span[1]) if span and len(leaf) >= _MIN_LEAF_CHARS else end
        found.append((start, end) if end > start else None)
    return found


def _find_beside(page: Page, name: str, description: str, low: int) -> int:
    """Find a tool's beginning: its name beside its description, which is rarer."""
    beginning = description.strip()[:_BEGINNING_CHARS].partition("\n")[0]
    if len(beginning) < _MIN_LEAF_CHARS:
        return page.find(name, low, len(page.text))
    near = page.find(beginning, low, len(page.text))
    if near < 0:
        return -1
    start = page.find_last(name, max(low, near - _NEAR_CHARS), near)
    if start < 0 and page.find(name, near, near + _NEAR_CHARS) >= 0:
        start = near
    return start
