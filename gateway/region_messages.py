"""Finds in a rendered prompt what of it came from which message, by the texts alone.

The template is never shown anything but the request itself. Texts are searched in turn; one that stands directly behind
its role's header is taken first, so that a short one is not found in what the template writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.region_page import CharSpan, Page, leaves, printed_forms, text_of, windows

_REASONING = ("reasoning_content", "reasoning", "thinking")
_MIN_NAME_CHARS = 4
_NEAR_CHARS = 400


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """Where one message stands."""

    hull: CharSpan
    """From the first to the last of its texts."""
    parts: tuple[CharSpan | None, ...]
    """Of its content, one each; of a string one."""


def find_messages(
    page: Page, messages: Sequence[Mapping[str, Any]], texts: Sequence[Sequence[str]], headers: Mapping[str, str]
) -> list[FoundMessage | None]:
    """Find all messages.

    Args:
        page: the rendered text; the tools are taken.
        messages: as the template got them.
        texts: of the parts of each one's content.
        headers: role -> what stands directly before its contents.
    """
    found = _find_contents(page, messages, texts, headers, start=0)
    num_head = next((i for i, m in enumerate(messages) if m["role"] not in ("system", "developer")), len(messages))
    if num_head and any(not place and any(parts) for place, parts in zip(found, texts, strict=True)):
        # Some templates print the system text late, in the last turn of the user.
        late = _find_contents(page, messages, texts, headers, start=num_head)
        if sum(map(bool, late)) > sum(map(bool, found)):
            found = late
    return _with_calls(page, messages, found)


def _find_contents(
    page: Page,
    messages: Sequence[Mapping[str, Any]],
    texts: Sequence[Sequence[str]],
    headers: Mapping[str, str],
    *,
    start: int,
) -> list[FoundMessage | None]:
    """Find contents that stand in turn from message `start` on; those before it stand anywhere."""
    found: list[FoundMessage | None] = [_find_content(page, parts, 0, len(page.text)) for parts in texts[:start]]
    page = page.without([place.hull for place in found if place])
    found += [None] * (len(messages) - start)
    end = 0
    for index in range(start, len(messages)):
        header = headers.get(messages[index]["role"], "")
        place = _find_content(page, texts[index], end, len(page.text), header) if header else None
        if place:
            found[index], end = place, place.hull[1]
    places = [place.hull if place else None for place in found]
    for index, (low, high) in windows(places, len(page.text), start):
        if not found[index]:
            found[index] = place = _find_content(page, texts[index], low, high)
            places[index] = place.hull if place else None
    return found


def _find_content(page: Page, texts: Sequence[str], low: int, high: int, header: str = "") -> FoundMessage | None:
    parts: list[CharSpan | None] = []
    for text in texts:
        span = page.find_any(printed_forms(text), low, high, "" if any(parts) else header)
        parts.append(span)
        low = span[1] if span else low
    spans = [span for span in parts if span]
    return FoundMessage((spans[0][0], spans[-1][1]), tuple(parts)) if spans else None


def _with_calls(
    page: Page, messages: Sequence[Mapping[str, Any]], found: Sequence[FoundMessage | None]
) -> list[FoundMessage | None]:
    """Add thoughts, calls and ids to the messages that have them."""
    whole = list(found)
    places = [place.hull if place else None for place in found]
    for index, (low, high) in windows(places, len(page.text)):
        message, place = messages[index], found[index]
        spans = [place.hull] if place else []
        start = place.hull[0] if place else high
        spans += filter(
            None, [page.find_any(printed_forms(text_of(message.get(name))), low, start) for name in _REASONING]
        )
        end = place.hull[1] if place else low
        for call in message.get("tool_calls") or ():
            span = _find_call(page, call, end, high) or (_find_call(page, call, low, high) if place else None)
            if span:
                spans.append(span)
                end = max(end, span[1])
        spans += _near(page, text_of(message.get("tool_call_id")), place.hull if place else None, (low, high))
        if spans:
            hull = (min(span[0] for span in spans), max(span[1] for span in spans))
            whole[index] = FoundMessage(hull, place.parts if place else ())
            places[index] = hull
    return whole


def _near(page: Page, text: str, place: CharSpan | None, window: CharSpan) -> list[CharSpan]:
    """Find an id beside what it belongs to."""
    if len(text) < _MIN_NAME_CHARS or place is None:
        return []
    start = page.find_last(text, max(window[0], place[0] - _NEAR_CHARS), place[0])
    if start < 0:
        start = page.find(text, place[1], min(window[1], place[1] + _NEAR_CHARS))
    return [(start, start + len(text))] if start >= 0 else []


def _find_call(page: Page, call: Mapping[str, Any], low: int, high: int) -> CharSpan | None:
    """Find a call by its arguments, as a whole or value by value, and its name beside them."""
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    span = page.find_any(_argument_forms(arguments), low, high) or _find_leaves(page, leaves(arguments), low, high)
    if span is None:
        start = page.find(name, low, high)
        span = (start, start + len(name)) if start >= 0 else None
    if span is None:
        return None
    spans = [span, *_near(page, name if len(name) >= _MIN_NAME_CHARS else "", span, (low, high))]
    spans += _near(page, text_of(call.get("id")), span, (low, high))
    return min(start for start, _ in spans), max(end for _, end in spans)


def _argument_forms(arguments: object) -> Iterator[str]:
    if isinstance(arguments, str):
        yield from printed_forms(arguments)
    elif arguments:
        text = json.dumps(arguments, ensure_ascii=False)
        yield text
        yield json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
        yield str(arguments)
        yield json.dumps(arguments)
        yield json.dumps(text, ensure_ascii=False)[1:-1]
        yield from (json.dumps(arguments, ensure_ascii=False, indent=indent) for indent in (2, 4))


def _find_leaves(page: Page, leaves: Iterator[str], low: int, high: int) -> CharSpan | None:
    """Find texts in turn, passing over those that are not there."""
    spans: list[CharSpan] = []
    for leaf in leaves:
        span = page.find_any(printed_forms(leaf), spans[-1][1] if spans else low, high)
        if span:
            spans.append(span)
    return (spans[0][0], spans[-1][1]) if spans else None


def _overlap(one: CharSpan, other: CharSpan) -> bool:
    return one[0] < other[1] and other[0] < one[1]
