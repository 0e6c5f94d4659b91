"""A summary in the words of the text: the sentences that say most of it, in their order."""

from __future__ import annotations

import math
import re
from collections import Counter as Tally
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gateway.context.borders import looks_like_code
from gateway.context.chunks import sentences_of
from gateway.context.units import Counter
from gateway.context.words import Words

MAX_SENTENCES = 300
"""Compared with each other, which takes time and memory by the square."""
_MAX_READ = 1500
"""Sentences whose words are looked at."""
_MAX_SENTENCE_CHARS = 1000
"""What is longer is data, and is not quoted."""
_SIMILAR = 0.1
_CLOSE_ENOUGH = 1e-4
_MAX_STEPS = 100
_FACT_BONUS = 1.0
"""For what a later question is likely to ask for; the most central sentence has 1 without it."""
_FACT = re.compile(
    r"[\dadmnps同决必永名喜](?:(?<=\d)"
    r"|(?<=\ba)(?:gree[ds]?|lways)\b|(?<=\bd)(?:ecided?|ecisions?|eadline)\b|(?<=\bm)ust\b"
    r"|(?<=\bn)(?:ever|ame is)\b|(?<=\bp)refers?\b|(?<=\bs)hall\b"
    r"|(?<=同)意|(?<=决)[定不]|(?<=必)须|(?<=永)远|(?<=名)字|(?<=喜)欢)"
)
"""In small letters: agreed, always, decided, must. Begins with one set of signs, which the search finds fast."""
_MAX_MISFITS = 8
"""Sentences that do not fit any more, after which the rest is not looked at."""
_ENDS_WITHOUT_SPACE = "。！？；｡।॥"
_CLOSERS = "\"'”’」』）】》〉"
_FIRST_SPACELESS = "\u2e80"


class _Sentence(NamedTuple):
    text: str
    place: int
    """Index of its text."""
    position: int
    """Within that text."""
    bonus: float
    words: Sequence[str]


def summarize(texts: Sequence[str], budget_tokens: int, count: Counter, words: Words | None = None) -> str:
    """Quote the sentences that say most of what the texts say, and those that state facts.

    The same texts give the same summary in every process. It is never longer than the texts on lines of their own.

    Args:
        texts: in the order of the history.
        budget_tokens: most that the summary takes, as `count` tells.
        count: a text must take no more than its parts together.
        words: that others cut texts with, too.

    Returns: a line for each text of which something is quoted; empty where nothing fits.
    """
    sentences = _preselected(_sentences(texts, words or Words()))
    if not sentences:
        return ""
    scores = lexrank([sentence.words for sentence in sentences])
    scores = scores / scores.max() + [sentence.bonus for sentence in sentences]
    left, num_misfits, chosen = budget_tokens, 0, []
    for index in np.argsort(-scores, kind="stable"):
        if left <= 0 or num_misfits == _MAX_MISFITS:
            break
        cost = count(sentences[index].text + " ")
        if cost <= left:
            left -= cost
            chosen.append(int(index))
        else:
            num_misfits += 1
    return _joined([sentences[index] for index in sorted(chosen)])


def lexrank(sentences: Sequence[Sequence[str]]) -> npt.NDArray[np.float64]:
    """Score sentences by how many others are like them, and how central those are: `[num_sentences]`, above 0 in one.

    Args:
        sentences: the words of each.
    Source: G. Erkan and D. R. Radev, "LexRank" (2004), without damping.
    """
    num = len(sentences)
    num_with = Tally(chain.from_iterable(map(dict.fromkeys, sentences)))
    idf = {word: math.log(num / (1 + found)) for word, found in num_with.items()}
    columns = {word: column for column, word in enumerate(word for word, found in num_with.items() if found > 1)}
    vectors, norms = np.zeros((num, len(columns))), np.zeros(num)
    for row, words in enumerate(sentences):
        tally = Tally(words)
        most = max(tally.values(), default=1)
        weights = {word: times / most * idf[word] for word, times in tally.items()}
        norms[row] = math.sqrt(sum(weight**2 for weight in weights.values()))
        for word, weight in weights.items():
            if word in columns:
                vectors[row, columns[word]] = weight
    vectors /= np.where(norms > 0, norms, 1.0)[:, None]
    # Not `@`: the threads of a BLAS spin behind it for longer than all of this takes.
    similar = np.einsum("ik,jk->ij", vectors, vectors) > _SIMILAR
    np.fill_diagonal(similar, norms > 0)
    links = similar / np.maximum(similar.sum(axis=1, keepdims=True), 1)
    return _steady(links.T)


def _steady(links: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Give what following the links does not change any more."""
    scores = np.full(len(links), 1 / len(links))
    for _ in range(_MAX_STEPS):
        following = np.einsum("ij,j->i", links, scores)
        norm = np.linalg.norm(following)
        if norm == 0:
            break
        following /= norm
        change = np.linalg.norm(following - scores)
        scores = following
        if change <= _CLOSE_ENOUGH:
            break
    return scores


def _sentences(texts: Sequence[str], words: Words) -> list[_Sentence]:
    """Give each sentence once, where it comes first; of very many those with facts, or some from everywhere."""
    found: dict[str, tuple[int, int]] = {}
    for place, text in enumerate(texts):
        for position, sentence in enumerate(sentences_of(text)):
            if len(sentence) <= _MAX_SENTENCE_CHARS:
                found.setdefault(sentence, (place, position))
    bonuses = {sentence: _bonus(sentence) for sentence in found}
    facts = _thinned([sentence for sentence in found if bonuses[sentence]], _MAX_READ)
    rest = _thinned([sentence for sentence in found if not bonuses[sentence]], _MAX_READ - len(facts))
    kept = {*facts, *rest}
    return [
        _Sentence(sentence, *place, bonuses[sentence], words.of(sentence))
        for sentence, place in found.items()
        if sentence in kept
    ]


def _thinned(sentences: list[str], most: int) -> list[str]:
    """Take so many, spread evenly."""
    num = len(sentences)
    return sentences if num <= most else [sentences[index * num // most] for index in range(most)]


def _preselected(sentences: list[_Sentence]) -> list[_Sentence]:
    """Leave those that are worth comparing: of frequent words, at the beginning of their text, with facts."""
    num = len(sentences)
    if num <= MAX_SENTENCES:
        return sentences
    num_with = Tally(chain.from_iterable(dict.fromkeys(sentence.words) for sentence in sentences))
    weight = {word: found / num * math.log(num / found) for word, found in num_with.items()}
    scores = [
        sum(map(weight.__getitem__, sentence.words)) / (1 + len(sentence.words))
        + 1 / (4 + 4 * sentence.position)
        + sentence.bonus
        for sentence in sentences
    ]
    best = sorted(range(num), key=lambda index: (-scores[index], index))[:MAX_SENTENCES]
    return [sentences[index] for index in sorted(best)]


def _bonus(sentence: str) -> float:
    """Prefer what has a number or a decision, but for code and logs, which are full of numbers."""
    return _FACT_BONUS if _FACT.search(sentence.lower()) and not looks_like_code(sentence, 0, len(sentence)) else 0.0


def _joined(sentences: Sequence[_Sentence]) -> str:
    pieces: list[str] = []
    for index, sentence in enumerate(sentences):
        if index:
            pieces.append(_separator(sentences[index - 1], sentence))
        pieces.append(sentence.text)
    return "".join(pieces)


def _separator(before: _Sentence, behind: _Sentence) -> str:
    """Put a space only where the texts had white space too."""
    if before.place != behind.place:
        return "\n"
    needs_none = before.text.rstrip(_CLOSERS)[-1:] in tuple(_ENDS_WITHOUT_SPACE) or behind.text[0] >= _FIRST_SPACELESS
    return "" if needs_none else " "
