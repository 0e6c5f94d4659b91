"""Which part of what a user wrote is a document, and which is the question about it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gateway.context.borders import fenced_spans
from gateway.context.chunks import splits_letter

_MAX_QUESTION_BYTES = 800
"""Of what stands before a document, and of what stands behind it: bytes, for they tell tokens better than characters."""
_ASKS = re.compile(r"[?？؟]")
_BORDERS = (
    re.compile(r"\n[ \t]*\n\s*"),
    re.compile(r"\n\s*"),
    re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*"),
    re.compile(r"\s+"),
)
"""Paragraphs, lines, sentences, words: those of one kind are looked for only where there are none of the kind before."""


def document_span(text: str) -> tuple[int, int]:
    """Find what a user pasted: all but short paragraphs at the beginning and at the end.

    Where there are none, short lines, sentences or at least words are left. A code block is parted nowhere.

    Returns: start and stop in characters.
    """
    num_bytes = max(1, len(text.encode("utf-8", "surrogatepass")))
    reach = min(_MAX_QUESTION_BYTES * len(text) // num_bytes, len(text) // 4)
    fences = fenced_spans(text)
    start = max(_cuts(text, 1, reach, fences), default=0)
    stop = min(_cuts(text, len(text) - reach, len(text) - 1, fences), default=len(text))
    return start, stop


def _cuts(text: str, first: int, last: int, fences: Sequence[tuple[int, int]]) -> list[int]:
    """Give the places of the best kind that there is from `first` to `last`."""
    near = [(start, stop) for start, stop in fences if start < last and stop > first]
    for border in _BORDERS:
        cuts = [match.end() for match in border.finditer(text, first - 1, last + 1)]
        cuts = [
            cut
            for cut in cuts
            if first <= cut <= last
            and not splits_letter(text, cut)
            and not any(start < cut < stop for start, stop in near)
        ]
        if cuts:
            return cuts
    return []


def asked_in(text: str) -> str:
    """Leave the paragraphs that ask, and the first and the last one: what stands between is what is asked about."""
    paragraphs = _BORDERS[0].split(text.strip())
    between = filter(_ASKS.search, paragraphs[1:-1])
    return "\n\n".join([paragraphs[0], *between, *paragraphs[1:][-1:]])
