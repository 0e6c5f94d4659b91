"""The `cache_control` marks of an Anthropic body: how much of the prompt its sender wants kept, and how long.

Whatever is sent is cached here, so a mark changes no token and no count: it only says what to evict later than the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway import checks
from gateway.chat_request import RetentionHint

_FIELD = "cache_control"
_SECONDS: Mapping[str, float] = {"5m": 300.0, "1h": 3600.0}


def retention_of(fields: Mapping[str, Any]) -> tuple[RetentionHint, ...]:
    """Read the marks of a body in which all that is said was checked.

    Marks of tools and of the system text cover the head; one of a turn, or of the body itself, the whole prompt.

    Raises: InvalidRequestError: a mark is none.
    """
    head = [*_marks("tools", fields.get("tools")), *_marks("system", fields.get("system"))]
    turns = list(_mark("", fields))
    for index, message in enumerate(fields["messages"]):
        turns += _marks(f"messages[{index}].content", message["content"])
    hints = []
    if turns:
        hints.append(RetentionHint(is_of_head=False, seconds=max(turns)))
    if head and max(head) > max(turns, default=0):
        hints.append(RetentionHint(is_of_head=True, seconds=max(head)))
    return tuple(hints)


def _marks(place: str, entries: object) -> Iterator[float]:
    """Yield the seconds of each mark in a list of blocks or tools, and in the results of tools in it."""
    if not isinstance(entries, list):
        return
    for index, entry in enumerate(entries):
        name = f"{place}[{index}]"
        yield from _mark(f"{name}.", entry)
        if entry.get("type") == "tool_result":
            yield from _marks(f"{name}.content", entry.get("content"))


def _mark(place: str, entry: Mapping[str, Any]) -> Iterator[float]:
    if entry.get(_FIELD) is None:
        return
    field = f"{place}{_FIELD}"
    mark = checks.mapping(field, entry[_FIELD])
    checks.one_of(f"{field}.type", mark.get("type"), ("ephemeral",))
    ttl = "5m" if mark.get("ttl") is None else checks.one_of(f"{field}.ttl", mark["ttl"], tuple(_SECONDS))
    yield _SECONDS[ttl]
