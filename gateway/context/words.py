"""The words by which texts are compared: the same for a question and for what answers it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import chain

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


class Words:
    """Cuts texts into words; keeps what it knows about each, so that a word that comes again costs a look."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, ...]] = {}

    def of(self, text: str) -> list[str]:
        """Give the words of a text, in order.

        Small letters, without plural endings. Identifiers come whole and in their parts; scripts without spaces in
        pairs of characters.
        """
        known, found = self._known, _WORD.findall(text)
        for word in found:
            if word not in known:
                known[word] = tuple(_expand(word))
        return list(chain.from_iterable(map(known.__getitem__, found)))


def _expand(word: str) -> Iterator[str]:
    if _IS_PLAIN.fullmatch(word):
        yield _singular(word.lower())
        return
    for run in _RUN.findall(unicodedata.normalize("NFKC", word)):
        if _IS_SPACELESS.match(run):
            yield from (run[index : index + 2] for index in range(max(1, len(run) - 1)))
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
