"""What of long documents and of old turns answers a question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gateway.context.bm25 import Bm25
from gateway.context.chunks import Chunk, chunks_of
from gateway.context.placeholders import quoted
from gateway.context.units import Counter
from gateway.context.words import Words

CHUNK_CHARS = 320
_HEADER = "[Quoted from parts of this chat that are left out: it may help with what follows]"
_MAX_MISFITS = 8
"""Chunks that do not fit any more, after which the rest is not looked at."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a document that is given."""

    document: str
    start: int
    end: int
    """In characters of the document."""
    text: str


class Archive:
    """Documents in chunks that are found by their words.

    Args:
        documents: the name and the text of each, in the order of the history.
    """

    def __init__(self, documents: Iterable[tuple[str, str]]) -> None:
        self._documents = list(documents)
        self._chunks: Sequence[tuple[int, Chunk]] = [
            (index, chunk) for index, (_, text) in enumerate(self._documents) for chunk in chunks_of(text, CHUNK_CHARS)
        ]
        words = Words()
        self._index = Bm25([words.of(chunk.text) for _, chunk in self._chunks])

    def best(self, query: str, budget_tokens: int, count: Counter) -> list[Passage]:
        """Choose the passages that answer a question best, as many as the budget takes when they are `printed`.

        The same archive and question give the same passages in every process.

        Args:
            query: the question's text.
            budget_tokens: most that they take, as `count` tells.
            count: a text must take no more than its parts together.

        Returns: in the order of the documents; chosen chunks that touch are one passage. Empty where no word is shared.
        """
        scores = self._index.scores(Words().of(query))
        left, num_misfits, chosen = budget_tokens - count(_HEADER + "\n"), 0, []
        for place in np.argsort(-scores, kind="stable"):
            if scores[place] <= 0 or left <= 0 or num_misfits == _MAX_MISFITS:
                break
            document, chunk = self._chunks[place]
            cost = count(quoted(self._documents[document][0], chunk.text))
            if cost <= left:
                left -= cost
                chosen.append(int(place))
            else:
                num_misfits += 1
        return list(self._joined(sorted(chosen)))

    def _joined(self, places: Sequence[int]) -> Iterator[Passage]:
        """Make passages of chunks in order."""
        for number, place in enumerate(places):
            if number and self._touch(places[number - 1], place):
                continue
            last = number
            while last + 1 < len(places) and self._touch(places[last], places[last + 1]):
                last += 1
            document, first = self._chunks[place]
            name, text = self._documents[document]
            start, end = first.start, self._chunks[places[last]][1].end
            yield Passage(name, start, end, text[start:end])

    def _touch(self, place: int, behind: int) -> bool:
        return place + 1 == behind and self._chunks[place][0] == self._chunks[behind][0]


def printed(passages: Sequence[Passage]) -> str:
    """Write the block that stands in front of what a user asks; empty without passages."""
    if not passages:
        return ""
    return f"{_HEADER}\n" + "".join(quoted(passage.document, passage.text) for passage in passages)
