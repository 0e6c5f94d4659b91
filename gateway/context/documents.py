"""Which part of what a user wrote is a document, and which is the question about it."""

from __future__ import annotations

import re

_MAX_QUESTION_CHARS = 1000
"""Of what stands before a document, and of what stands behind it."""
_PARAGRAPHS = re.compile(r"\n[ \t]*\n\s*")
_ASKS = re.compile(r"[?？؟]")
_SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")


def document_span(text: str) -> tuple[int, int]:
    """Find what a user pasted: all but short paragraphs at the beginning and at the end.

    A text without paragraphs leaves its first and its last sentence.

    Returns: start and stop in characters; they are equal where all of it is question.
    """
    cuts = [match.end() for match in _PARAGRAPHS.finditer(text)] or [
        match.end() for match in _SENTENCE_ENDS.finditer(text)
    ]
    cuts = [cut for cut in cuts if cut < len(text)]
    if not cuts:
        return 0, len(text)
    start = max((cut for cut in cuts if cut <= _MAX_QUESTION_CHARS), default=0)
    stop = min((cut for cut in cuts if len(text) - cut <= _MAX_QUESTION_CHARS), default=len(text))
    return (start, stop) if start < stop else (0, 0)


def asked_in(text: str) -> str:
    """Leave the paragraphs that ask, and the first and the last one: what stands between is what is asked about."""
    paragraphs = _PARAGRAPHS.split(text.strip())
    between = filter(_ASKS.search, paragraphs[1:-1])
    return "\n\n".join([paragraphs[0], *between, *paragraphs[1:][-1:]])
