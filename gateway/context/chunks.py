"""A text in chunks that can be given alone, and in sentences that can be quoted alone."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from gateway.context.borders import FENCES, Border, borders_of

_SOFT_BORDERS = (" ", "\n", "\t", ",", ";", "，", "、", "}", "　")
_JOINER = "\u200d"
_IS_SAID = re.compile(r"[^\W_]")
"""A letter or a digit."""
_MAX_CLUSTER = 32
"""A letter with more marks than that is cut."""


class Chunk(NamedTuple):
    """A part of a text."""

    text: str
    start: int
    end: int
    """In characters of the text."""


def chunks_of(text: str, max_chars: int) -> list[Chunk]:
    """Cut a text at the best borders that make chunks long; joined, they are the text.

    A sentence or a line that is longer than a chunk is cut between words where there are any, never within a letter
    and its marks. Linear in the length of the text.

    Raises: ValueError: `max_chars` is less than 1.
    """
    if max_chars < 1:
        raise ValueError(f"max_chars: got {max_chars}, wanted at least 1")
    if 0 < len(text) <= max_chars:
        return [Chunk(text, 0, len(text))]
    cuts = list(_cuts(text, max_chars))
    return [Chunk(text[start:end], start, end) for start, end in zip([0, *cuts], cuts, strict=False)]


def sentences_of(text: str) -> list[str]:
    """Give what can be quoted alone, in order: sentences, headings, entries of lists, lines of code.

    White space within them is one space; fences and what holds no letter and no digit are left out.
    """
    ends = [border.end for border in borders_of(text)]
    parts = [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)] if ends else [text]
    sentences = [" ".join(part.split()) for part in parts]
    return [sentence for sentence in sentences if _IS_SAID.search(sentence) and sentence[:3] not in FENCES]


def letter_end(text: str, stop: int, start: int = 0) -> int:
    """Find the last place up to `stop` that parts no letter from its marks; `stop` itself where there is none near."""
    for end in range(stop, max(start, stop - _MAX_CLUSTER), -1):
        if not splits_letter(text, end):
            return end
    return stop


def splits_letter(text: str, end: int) -> bool:
    """Whether a cut parts a letter from its marks, the halves of an emoji, of a surrogate pair or of a line's end."""
    if not 0 < end < len(text):
        return False
    before, behind = text[end - 1], text[end]
    if behind < "\u0300":
        return before == _JOINER or (before == "\r" and behind == "\n")
    return (
        before == _JOINER
        or behind == _JOINER
        or unicodedata.category(behind).startswith("M")
        or "\U0001f3fb" <= behind <= "\U0001f3ff"
        or ("\ud800" <= before <= "\udbff" and "\udc00" <= behind <= "\udfff")
    )


def _cuts(text: str, max_chars: int) -> Iterator[int]:
    """Give the end of each chunk."""
    start = 0
    window: list[Border] = []  # the borders of the chunk that begins at `start`
    for border in chain(borders_of(text), [Border(len(text), 0)]):
        while border.end - start > max_chars:
            start = _cut(text, start, max_chars, window)
            yield start
            del window[: bisect_right(window, start, key=attrgetter("end"))]
        if not splits_letter(text, border.end):
            window.append(border)
    if start < len(text):
        yield len(text)


def _cut(text: str, start: int, max_chars: int, window: list[Border]) -> int:
    """Choose the end of a chunk: the best border of its second half, else the last one, else between words."""
    half = start + max_chars // 2
    late = window[bisect_right(window, half, key=attrgetter("end")) :] or window[-1:]
    if late:
        return max(late, key=lambda border: (border.rank, border.end)).end
    stop = start + max_chars
    soft = max(text.rfind(sign, half, stop) for sign in _SOFT_BORDERS) + 1
    return soft if soft > half and not splits_letter(text, soft) else letter_end(text, stop, start)
