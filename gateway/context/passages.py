"""What of long documents and of old turns answers a question."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gateway.context.bm25 import Bm25
from gateway.context.chunks import Chunk, chunks_of
from gateway.context.placeholders import quoted
from gateway.context.units import Counter
from gateway.context.words import Words

CHUNK_CHARS = 160
"""A sentence or two: where the budget is small, many of them give more answers than a few long ones."""
_NUM_RESCORED = 128
"""Chunks of which the pairs of words are looked at."""
_QUESTION_MARK = re.compile(r"[?？]")
_SAID = re.compile(r"\w")
_SENTENCE_ENDS = ".!?。！？\n"
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
        words: that others cut texts with, too.
    """

    def __init__(self, documents: Iterable[tuple[str, str]], words: Words | None = None) -> None:
        self._words = words or Words()
        self._documents = list(documents)
        self._chunks: Sequence[tuple[int, Chunk]] = [
            (index, chunk) for index, (_, text) in enumerate(self._documents) for chunk in chunks_of(text, CHUNK_CHARS)
        ]
        self._index = Bm25([self._words.of(self._said(place)) for place in range(len(self._chunks))])

    def best(self, query: str, budget_tokens: int, count: Counter) -> list[Passage]:
        """Choose the passages that answer a question best, as many as the budget takes when they are `printed`.

        The same archive and question give the same passages in every process.

        Args:
            query: the question's text.
            budget_tokens: most that they take, as `count` tells.
            count: a text must take no more than its parts together.

        Returns: in the order of the documents; chosen chunks that touch are one passage. Empty where no word is shared.
        """
        scores = self._scores(query)
        left, num_misfits, chosen = budget_tokens - count(_HEADER + "\n"), 0, []
        for place in _best_first(scores):
            if left <= 0 or num_misfits == _MAX_MISFITS:
                break
            document, chunk = self._chunks[place]
            cost = count(quoted(self._documents[document][0], chunk.text))
            if cost <= left:
                left -= cost
                chosen.append(int(place))
            else:
                num_misfits += 1
        return list(self._joined(sorted(chosen)))

    def _said(self, place: int) -> str:
        """Give a chunk without the question that its document ends with: it is what is most like a new one."""
        document, chunk = self._chunks[place]
        is_last = place + 1 == len(self._chunks) or self._chunks[place + 1][0] != document
        return _without_last_question(chunk.text) if is_last else chunk.text

    def _scores(self, query: str) -> npt.NDArray[np.float64]:
        """Score every chunk; the best of them anew, with more where words stand side by side as in the question.

        So a name of two common words is found among all that have one of them. A pair counts as its commoner word.
        """
        asked = self._words.of(query)
        scores = self._index.scores(asked)
        pairs = {pair: min(map(self._index.rarity, pair)) ** 2 for pair in pairwise(asked)}
        for place in _best_first(scores)[:_NUM_RESCORED]:
            found = set(pairwise(self._words.of(self._said(place))))
            scores[place] += sum(weight for pair, weight in pairs.items() if pair in found)
        return scores

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


def _best_first(scores: npt.NDArray[np.float64]) -> list[int]:
    """Order the places that have a score above 0."""
    places = np.flatnonzero(scores > 0)
    order: list[int] = places[np.argsort(-scores[places], kind="stable")].tolist()
    return order


def _without_last_question(text: str) -> str:
    """Leave out the question that a text ends with, with the signs behind it."""
    if not _QUESTION_MARK.search(text):  # as most
        return text
    mark = max(map(text.rfind, "?？"))
    if _SAID.search(text, mark + 1):
        return text
    return text[: 1 + max(text.rfind(sign, 0, mark) for sign in _SENTENCE_ENDS)]


def printed(passages: Sequence[Passage]) -> str:
    """Write the block that stands in front of what a user asks; empty without passages."""
    if not passages:
        return ""
    return f"{_HEADER}\n" + "".join(quoted(passage.document, passage.text) for passage in passages)
