"""A rendered prompt in which texts are searched, in the forms in which templates print them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

CharSpan = tuple[int, int]

_SCANS = 64
"""Times that the whole text may be read at most: texts that are not found must not cost a square."""
_END_OF_THOUGHT = "</think>"


class Page:
    """A text that is searched for a while, and then no more.

    Args:
        text: as rendered.
        taken: stretches of it that are left out.
    """

    def __init__(self, text: str, taken: Sequence[CharSpan] = ()) -> None:
        self.text = text
        self._chars_left = _SCANS * (len(text) + 1)
        self._taken = sorted(taken)

    def without(self, taken: Sequence[CharSpan]) -> Page:
        """Leave further stretches out, for a search of its own."""
        return Page(self.text, [*self._taken, *taken]) if taken else self

    def find(self, wanted: str, low: int, high: int) -> int:
        """Find a text within bounds; -1: it is not there, or enough was searched."""
        while wanted and 0 <= low < high and self._chars_left > 0:
            found = self.text.find(wanted, low, high)
            self._chars_left -= (found if found >= 0 else high) - low + len(wanted)
            over = next((taken for taken in self._taken if found < taken[1] and found + len(wanted) > taken[0]), None)
            if found < 0 or over is None:
                return found
            low = over[1]
        return -1

    def find_last(self, wanted: str, low: int, high: int) -> int:
        """Find the last place of a text within bounds."""
        if not wanted or low >= high or self._chars_left <= 0:
            return -1
        self._chars_left -= high - low
        return self.text.rfind(wanted, low, high)

    def find_any(self, forms: Iterator[str], low: int, high: int, before: str = "") -> CharSpan | None:
        """Find the first form that is there, behind a fixed text."""
        for form in forms:
            start = self.find(before + form, max(low - len(before), 0), high) if form else -1
            if start >= 0:
                return start + len(before), start + len(before) + len(form)
        return None


def printed_forms(text: str) -> Iterator[str]:
    """Give the ways in which templates print a text, the likeliest first."""
    yield text
    stripped = text.strip()
    if stripped != text:
        yield stripped
    if _END_OF_THOUGHT in text:
        yield text.rpartition(_END_OF_THOUGHT)[2].strip()
    for ensure_ascii in (False, True):
        escaped = json.dumps(text, ensure_ascii=ensure_ascii)[1:-1]
        if escaped != text:
            yield escaped


def leaves(value: object) -> Iterator[str]:
    """Give all names, texts and numbers in a JSON value, in turn."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield key
            yield from leaves(entry)
    elif isinstance(value, Sequence):
        for entry in value:
            yield from leaves(entry)
    elif value is not None:
        yield json.dumps(value)


def text_of(value: object) -> str:
    """Return a text as it is, and anything else as none."""
    return value if isinstance(value, str) else ""


def windows(places: Sequence[CharSpan | None], end: int, start: int = 0) -> Iterator[tuple[int, CharSpan]]:
    """Give, for each place from `start` on, the bounds between what stands before and behind it.

    Args:
        places: in the order in which they should stand; one that stands late bounds nothing before it. They may be
            filled in while they are gone through.
        end: of the text.
        start: the first one that is asked for.
    """
    highs, high = [end] * len(places), end
    for index in reversed(range(start, len(places))):
        highs[index] = high
        place = places[index]
        high = min(high, place[0]) if place else high
    low = 0
    for index in range(start, len(places)):
        yield index, (low, highs[index])
        place = places[index]
        if place and place[1] <= highs[index]:
            low = max(low, place[1])
