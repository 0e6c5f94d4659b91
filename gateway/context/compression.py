"""A long result of a tool is shortened when it first comes, for good: to what was asked for, and its beginning and end.

What is left follows from the result, its call and the question before it. So whatever comes later, it stays the same, and
what was sent before stays cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from gateway.context.bm25 import Bm25
from gateway.context.chunks import Chunk, chunks_of
from gateway.context.placeholders import GAP, shortened_result
from gateway.context.units import Counter
from gateway.context.words import Words
from gateway.normalize.memory import TurnMemory

_CHUNK_CHARS = 320
_MAX_MISFITS = 8
"""Chunks that do not fit any more, after which the rest is not looked at."""


class Result(NamedTuple):
    """What a tool returned, and what for."""

    text: str
    tool: str
    asked: str
    """The question before it, and the arguments of its call."""


@dataclass(frozen=True, slots=True)
class Shortened:
    """What is sent of a result from the beginning."""

    text: str = ""
    """Empty: it is sent as it came."""
    saved_tokens: int = 0


WHOLE = Shortened()
Shorten = Callable[[Result], Shortened]


def whole(_: Result) -> Shortened:
    """Shorten nothing."""
    return WHOLE


def shortening(most_tokens: int, count: Counter, memory: TurnMemory, scope: str) -> Shorten:
    """Give what shortens each long result once, as long as it is not forgotten.

    Args:
        most_tokens: see `shorten`; 0: nothing is shortened.
        count: see `Counter`.
        memory: where it is kept.
        scope: whose results they are.
    """

    def shortened(result: Result) -> Shortened:
        if len(result.text) <= most_tokens // 4:  # no letter takes more tokens than it has bytes
            return WHOLE
        name = blake2b(repr((most_tokens, *map(len, result))).encode(), digest_size=16)
        for text in result:
            name.update(text.encode("utf-8", "surrogatepass"))
        key = b"shortened" + name.digest()
        found: Shortened | None = memory.find(scope, key)
        if found is None:
            found = shorten(result, most_tokens, count)
            memory.keep(scope, key, found)
        return found

    return shortened if most_tokens else whole


def shorten(result: Result, most_tokens: int, count: Counter) -> Shortened:
    """Keep of a result of more tokens what shares words with what was asked, then its beginning and end.

    Args:
        result: of any kind.
        most_tokens: that it takes then, as `count` tells.
        count: a text must take no more than its parts together.

    Returns: the parts in the order of the text; `WHOLE` where nothing is gained.
    """
    num_tokens = count(result.text)
    if num_tokens <= most_tokens:
        return WHOLE
    frame = count(shortened_result(result.tool, "", num_tokens))
    spans = _kept(result, most_tokens - frame, count)
    num_kept = sum(count(result.text[start:stop]) for start, stop in spans)
    text = shortened_result(result.tool, _written(result.text, spans), max(1, num_tokens - num_kept))
    saved = num_tokens - count(text)
    return Shortened(text, saved) if spans and saved > 0 else WHOLE


def _kept(result: Result, budget: int, count: Counter) -> list[tuple[int, int]]:
    """Choose chunks while they fit. Returns: start and stop in characters of what is kept, in order."""
    chunks = chunks_of(result.text, _CHUNK_CHARS)
    gap = count(f"\n{GAP}\n")
    left, num_misfits, chosen = budget - gap, 0, set[int]()
    for index in _by_worth(chunks, result.asked):
        if left <= 0 or num_misfits == _MAX_MISFITS:
            break
        cost = count(chunks[index].text) + gap
        if cost <= left:
            left -= cost
            chosen.add(index)
        else:
            num_misfits += 1
    firsts = [chunks[index].start for index in sorted(chosen) if index - 1 not in chosen]
    lasts = [chunks[index].end for index in sorted(chosen) if index + 1 not in chosen]
    return list(zip(firsts, lasts, strict=True))


def _written(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Write parts of a text with a line for each gap."""
    lines, behind = list[str](), 0
    for start, stop in spans:
        lines += [GAP, text[start:stop].strip("\r\n")] if start > behind else [text[start:stop].strip("\r\n")]
        behind = stop
    return "\n".join([*lines, GAP] if behind < len(text) else lines)


def _by_worth(chunks: Sequence[Chunk], asked: str) -> Iterator[int]:
    """Give first what answers best, then from both ends to the middle."""
    words = Words()
    scores = Bm25([words.of(chunk.text) for chunk in chunks]).scores(words.of(asked))
    places = np.arange(len(chunks))
    return map(int, np.lexsort((np.minimum(places, places[::-1]), -scores)))
