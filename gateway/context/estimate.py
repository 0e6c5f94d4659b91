"""About how many tokens a text has: all but exact for short texts, by samples for long ones."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from gateway.tokenizer import TokenArray

MAX_WHOLE_CHARS = 8192
"""A longer text is sampled: 1 ms of a slow core for prose, 5 ms for data."""
_NUM_SAMPLES = 32
_SAMPLE_CHARS = MAX_WHOLE_CHARS // _NUM_SAMPLES
MAX_KNOWN = 50_000
"""Pieces of text with their counts: about 6 MB."""
_PIECE = re.compile(r"'(?:[sdmt]|re|ve|ll)\b| ?[^\W\d_]{1,16}| ?\d{1,3}| ?(?:[^\w\s]|_){1,16}|\s{1,64}(?!\S)|\s{1,16}")
"""Words, numbers, signs and white space: where tokenizers cut, or near it; never so long that few come again."""

EncodeAll = Callable[[list[str]], Sequence[TokenArray]]


class TokenCounter:
    """Counts by the served model's tokenizer. Safe to use from several threads; equal texts have equal counts.

    A text is cut into pieces, of which nearly all came before, in any text: as the tokenizer itself, it remembers them.
    A cut that the tokenizer would not make costs a token too many, seldom one too few.

    Args:
        encode_all: gives the tokens of several texts.
    """

    def __init__(self, encode_all: EncodeAll) -> None:
        self._encode_all = encode_all
        self._known: dict[str, int] = {}

    @property
    def num_known(self) -> int:
        """Pieces that are remembered; at most `MAX_KNOWN`."""
        return len(self._known)

    def __call__(self, text: str) -> int:
        """Count the tokens of a text, without what a template writes around it.

        A long one has as many as its evenly spread samples let expect. None has less than one for 64 characters.
        """
        if len(text) <= MAX_WHOLE_CHARS:
            return self._count(_PIECE.findall(text))
        step = (len(text) - _SAMPLE_CHARS) / (_NUM_SAMPLES - 1)
        starts = [int(number * step) for number in range(_NUM_SAMPLES)]
        found = sum(self._count(_PIECE.findall(text, start, start + _SAMPLE_CHARS)) for start in starts)
        return math.ceil(found * len(text) / MAX_WHOLE_CHARS)

    def _count(self, pieces: list[str]) -> int:
        counts = list(map(self._known.get, pieces))
        if None in counts:
            found = self._learn(list({piece for piece, count in zip(pieces, counts, strict=True) if count is None}))
            counts = [found[piece] if count is None else count for piece, count in zip(pieces, counts, strict=True)]
        return sum(cast("list[int]", counts))

    def _learn(self, new: list[str]) -> Mapping[str, int]:
        found = dict(zip(new, map(len, self._encode_all(new)), strict=True))
        if len(self._known) + len(found) > MAX_KNOWN:
            self._known.clear()
        self._known |= found
        return found


def estimated_tokens(text: str) -> int:
    """Take four bytes of UTF-8 for a token: for where there is no tokenizer."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)
