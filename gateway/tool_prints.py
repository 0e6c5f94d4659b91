"""Tools as a template gets them: plain objects and arrays that remember how they were printed as JSON.

A client sends the same tools with each request, and printing them is the largest part of rendering. The normalizer hands
the same tuple of tools for an equal head, so what was printed of it is found by identity and printed once.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

JsonStyle = tuple[bool, Any, tuple[str, str] | None, bool]
"""ensure_ascii, indent, separators, sort_keys: what makes two prints of one value differ."""

_MAX_BYTES = 16 * 2**20
_MAX_JSON_BYTES = 8 * 2**20


class PrintedObject(dict[str, Any]):
    """A JSON object. The prints have a name that a sandboxed template cannot read."""

    __slots__ = ("_prints",)

    def __init__(self, entries: Mapping[str, Any]) -> None:
        super().__init__((name, remembering(value)) for name, value in entries.items())
        self._prints: dict[JsonStyle, str] = {}


class PrintedArray(list[Any]):
    """A JSON array."""

    __slots__ = ("_prints",)

    def __init__(self, entries: Sequence[Any]) -> None:
        super().__init__(map(remembering, entries))
        self._prints: dict[JsonStyle, str] = {}


def remembering(value: Any) -> Any:
    """Copy a JSON value so that it remembers its prints, at all levels."""
    if isinstance(value, dict):
        return PrintedObject(value)
    if isinstance(value, list | tuple):
        return PrintedArray(value)
    return value


def print_json(value: object, style: JsonStyle) -> str:
    """Print JSON; what remembers its prints is printed once in each style."""
    ensure_ascii, indent, separators, sort_keys = style
    known = value._prints if isinstance(value, PrintedObject | PrintedArray) else {}
    text = known.get(style)
    if text is None:
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        known[style] = text
    return text


def prints_of(value: object) -> Mapping[JsonStyle, str]:
    """Return how a value was printed up to now."""
    return dict(value._prints) if isinstance(value, PrintedObject | PrintedArray) else {}


class ToolPrints:
    """The last tools that came, found by the identity of their tuple. Safe to use from several threads."""

    def __init__(self, is_unsafe: Callable[[object], bool]) -> None:
        """Args: is_unsafe: whether a JSON value holds text that must be masked; such tools are not remembered."""
        self._is_unsafe = is_unsafe
        self._known: OrderedDict[int, tuple[tuple[Mapping[str, Any], ...], PrintedArray, int]] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def prepare(self, tools: tuple[Mapping[str, Any], ...]) -> PrintedArray | None:
        """Give the tools to render, or None where they have to be masked first."""
        with self._lock:
            known = self._known.get(id(tools))
            if known is not None and known[0] is tools:
                self._known.move_to_end(id(tools))
                return known[1]
        if self._is_unsafe(tools):
            return None
        prepared = PrintedArray(tools)
        num_bytes = len(orjson.dumps(tools))
        with self._lock:
            if num_bytes <= _MAX_JSON_BYTES and id(tools) not in self._known:
                self._known[id(tools)] = (tools, prepared, num_bytes)
                self._num_bytes += num_bytes
            while self._num_bytes > _MAX_BYTES:
                self._num_bytes -= self._known.popitem(last=False)[1][2]
        return prepared
