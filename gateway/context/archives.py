"""What was left out of chats, ready to be searched, kept for the questions to come. Making it takes time, searching none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.context.passages import Archive
from gateway.context.words import Words
from gateway.normalize.memory import TurnMemory

MAX_BYTES = 80_000_000
_BYTES_PER_CHAR = 10
"""That an archive takes."""


class Archives:
    """Archives by scope and by what was left out. Safe to use from several threads.

    Args:
        max_bytes: of all; an archive with more than an eighth of it is not kept. The scope with the most gives way.
        words: see `Archive`.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, words: Words | None = None) -> None:
        self._words = words
        self._kept = TurnMemory(max_bytes=max_bytes)

    @property
    def num_bytes(self) -> int:
        """Held now, by estimate."""
        return self._kept.num_bytes

    def of(self, scope: str, key: bytes, documents: Callable[[], Sequence[tuple[str, str]]]) -> Archive:
        """Give the archive of a cut.

        Args:
            scope: whose chat it is.
            key: names the cut.
            documents: give the name and the text of each document; only asked for where the archive is not kept.
        """
        kept: Archive | None = self._kept.find(scope, key)
        if kept is not None:
            return kept
        texts = documents()
        archive = Archive(texts, self._words)
        self._kept.keep(scope, key, archive, num_bytes=_BYTES_PER_CHAR * sum(len(text) for _, text in texts))
        return archive
