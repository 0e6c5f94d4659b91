"""How well each of many texts answers a question, by the words that they share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

_K1, _B = 1.5, 0.75


class Bm25:
    """The scores of all words in all texts, computed once, laid out word by word.

    A library (bm25s) has the same sums and stands in the tests as the reference: where numba is installed it loads it,
    which a gateway must not, and takes five times as long for an index.

    Args:
        texts: the words of each.
    Source: S. Robertson and H. Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), with the
        idf of Lucene, which is never negative.
    """

    def __init__(self, texts: Sequence[Sequence[str]]) -> None:
        words = list(chain.from_iterable(texts))
        self._ids = {word: index for index, word in enumerate(dict.fromkeys(words))}
        self._num_texts = len(texts)
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        ids = np.fromiter(map(self._ids.__getitem__, words), np.int64, len(words))
        keys = ids * max(1, len(texts)) + np.repeat(np.arange(len(texts)), lengths)
        keys, counts = np.unique(keys, return_counts=True)
        word, self._text = np.divmod(keys, max(1, len(texts)))
        num_with = np.bincount(word, minlength=len(self._ids))
        self._idf = np.log(1 + (len(texts) - num_with + 0.5) / (num_with + 0.5))
        relative = lengths[self._text] / lengths.mean() if len(words) else np.zeros(0)
        self._scores = self._idf[word] * counts / (counts + _K1 * (1 - _B + _B * relative))
        self._starts = np.searchsorted(word, np.arange(len(self._ids) + 1))

    def rarity(self, word: str) -> float:
        """Tell how few texts have a word; 0: none has it."""
        index = self._ids.get(word)
        return 0.0 if index is None else float(self._idf[index])

    def scores(self, question: Sequence[str]) -> npt.NDArray[np.float64]:
        """Score every text: `[num_texts]`, at least 0; 0 where no word is shared. A word counts once.

        Each counts once more by how rare it is: else, where texts are of many languages, "what was to be" outweighs
        what is asked for.
        """
        totals = np.zeros(self._num_texts)
        for word in dict.fromkeys(question):
            if (index := self._ids.get(word)) is not None:
                part = slice(self._starts[index], self._starts[index + 1])
                totals[self._text[part]] += self._idf[index] * self._scores[part]
        return totals
