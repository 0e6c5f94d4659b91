"""Tokens at which a text falls into parts that are tokenized independently of one another.

A tokenizer finds its added tokens first and works on what lies between them, so a special token that the template writes
is such a border, unless it takes blanks with it, must stand as a word of its own, is looked for in normalized text, or
overlaps another one. That is read from the tokenizer and then tried, for a wrong id would be another prompt.

Source: tokenizers, added_vocabulary.rs: extract_and_normalize.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from gateway.tokenizer import AddedToken, Tokenizer

_BLANK_SIGN = "\u2581"
_SAMPLES = (
    "",
    "a",
    " a",
    "a ",
    "  ",
    "\n",
    "\n\nb",
    "1",
    "23",
    ".",
    "'s",
    "é",
    "日本",
    "user\n",
    "a\tb",
    f"{_BLANK_SIGN}c",
)
"""Texts that tokenizers join with what stands beside them, where they do."""


@dataclass(frozen=True, slots=True)
class Borders:
    """Border tokens of one tokenizer and template; none: texts are tokenized whole."""

    ids: Mapping[str, int] = field(default_factory=dict)
    """Text of a border token -> its id."""
    is_lossless: bool = False
    """Whether decoding gives back what was encoded, wherever it stands."""
    why_none: str = ""
    """In words, where there are none."""

    @property
    def lead(self) -> str:
        """A border to put before a part that does not stand at the start: some tokenizers treat that differently."""
        return next(iter(self.ids), "")

    def pattern(self) -> re.Pattern[str]:
        """Find a border; it splits a text into parts and borders."""
        return re.compile("(" + "|".join(map(re.escape, self.ids)) + ")")

    def at(self, text: str, position: int) -> bool:
        """Whether a text may be cut there: beside a border, or at an end."""
        if position in (0, len(text)):
            return True
        return any(text.startswith(border, position) or text.endswith(border, 0, position) for border in self.ids)


def find_borders(tokenizer: Tokenizer, written: Iterable[str]) -> Borders:
    """Find the borders among the tokens that a template writes.

    Args:
        tokenizer: of the model.
        written: texts in which to look for them: the template's source, and the special tokens that it is given.
    """
    source = "\n".join(written)
    raw = [token for token in tokenizer.added_tokens if not token.normalized]
    named = [token for token in raw if token.text and token.text in source]
    if not named:
        return Borders(why_none="the template writes no token that the tokenizer looks for in raw text")
    clean = {token.text: token.index for token in named if _is_clean(token, raw)}
    if not clean:
        return Borders(why_none="the tokens that the template writes take blanks with them or overlap")
    borders = Borders(dict(sorted(clean.items(), key=lambda entry: -len(entry[0]))))
    if not _are_independent(tokenizer, borders):
        return Borders(why_none="the tokenizer does not treat the parts beside a special token independently")
    return Borders(borders.ids, is_lossless=_is_lossless(tokenizer, borders))


def _is_clean(token: AddedToken, others: Iterable[AddedToken]) -> bool:
    if token.takes_blanks or token.single_word:
        return False
    return not any(_overlap(token.text, other.text) for other in others if other.text != token.text)


def _overlap(text: str, other: str) -> bool:
    """Whether one text can be found where the other is: inside of it, or across one of its ends."""
    if text in other or other in text:
        return True
    shorter = min(len(text), len(other))
    return any(text.endswith(other[:size]) or other.endswith(text[:size]) for size in range(1, shorter))


def _probes(borders: Borders) -> list[list[str]]:
    """Give texts as lists of parts and borders in turn."""
    tokens = list(borders.ids)
    probes = [[before, token, after] for token in tokens for before, after in itertools.product(_SAMPLES, repeat=2)]
    return probes + [["", first, "", second, after] for first in tokens for second in tokens for after in _SAMPLES]


def _are_independent(tokenizer: Tokenizer, borders: Borders) -> bool:
    probes = _probes(borders)
    whole = tokenizer.encode_all(["".join(probe) for probe in probes])
    first = dict(zip(_SAMPLES, tokenizer.encode_all(list(_SAMPLES)), strict=True))
    led = tokenizer.encode_all([borders.lead + sample for sample in _SAMPLES])
    if any(not len(ids) or ids[0] != borders.ids[borders.lead] for ids in led):
        return False
    later = {sample: ids[1:] for sample, ids in zip(_SAMPLES, led, strict=True)}
    for probe, ids in zip(probes, whole, strict=True):
        parts = [first[probe[0]]]
        for border, part in zip(probe[1::2], probe[2::2], strict=True):
            parts += [np.array([borders.ids[border]], dtype=np.int32), later[part]]
        if not np.array_equal(np.concatenate(parts), ids):
            return False
    return True


def _is_lossless(tokenizer: Tokenizer, borders: Borders) -> bool:
    # The sign that some vocabularies write blanks with comes back as a blank: no text that was decoded has it.
    texts = [borders.lead + "".join(probe).replace(_BLANK_SIGN, "") for probe in _probes(borders)]
    return all(
        tokenizer.decode(ids.tolist()) == text for text, ids in zip(texts, tokenizer.encode_all(texts), strict=True)
    )
