"""The words by which texts are compared: the same for a question and for what answers it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import chain
from operator import add

_MARKED = "\u0300-\u036f\u0483-\u0487\u0591-\u05c7\u0610-\u065f\u0670\u0900-\u0963\u0966-\u0dff"
_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Scripts written without spaces: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
_WORD = re.compile(f"[\\w{_MARKED}{_SPACELESS}]+")
_RUN = re.compile(f"[{_SPACELESS}]+|[^{_SPACELESS}]+")
_IS_SPACELESS = re.compile(f"[{_SPACELESS}]")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+")
_IS_PLAIN = re.compile(r"[A-Z]?[a-z]+|\d+")
MAX_KNOWN = 50_000
"""Words that are kept: about 10 MB."""
_MAX_KNOWN_CHARS = 32
"""A longer one is data, or a text without spaces, and hardly comes again."""


class Words:
    """Cuts texts into words; keeps what it knows about each, so that a word that comes again costs a look.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._known = _Known()

    @property
    def num_known(self) -> int:
        """Words that are kept; at most `MAX_KNOWN`."""
        return len(self._known)

    def of(self, text: str) -> list[str]:
        """Give the words of a text, in order.

        Small letters, without plural endings. Identifiers come whole and in their parts; scripts without spaces in
        pairs of characters.
        """
        if len(self._known) >= MAX_KNOWN:
            self._known = _Known()  # who is at it goes on with the old one
        return list(chain.from_iterable(map(self._known.__getitem__, _WORD.findall(text))))


class _Known(dict[str, tuple[str, ...]]):
    """What a word is expanded to."""

    def __missing__(self, word: str) -> tuple[str, ...]:
        found = tuple(_expand(word))
        if len(word) <= _MAX_KNOWN_CHARS and len(self) < MAX_KNOWN:
            self[word] = found
        return found


def _expand(word: str) -> Iterator[str]:
    if _IS_PLAIN.fullmatch(word):
        yield _singular(word.lower())
        return
    runs = [word] if word.isascii() else _RUN.findall(unicodedata.normalize("NFKC", word))
    for run in runs:
        if _IS_SPACELESS.match(run):
            yield from map(add, run, run[1:]) if len(run) > 1 else run
            continue
        parts = _PART.findall(run)
        yield _singular(run.casefold())
        if len(parts) > 1:
            yield from (_singular(part.casefold()) for part in parts)


def _singular(word: str) -> str:
    """Take the plural ending from an English word.

    Source: D. Harman, "How effective is suffixing?" (1991), the S stemmer.
    """
    if len(word) < 4 or not word.isascii() or not word.endswith("s") or word.endswith(("ss", "us")):
        return word
    if word.endswith("ies") and not word.endswith(("eies", "aies")):
        return word[:-3] + "y"
    if word.endswith("es") and word.endswith(("aes", "ees", "oes")):
        return word
    return word[:-1]
