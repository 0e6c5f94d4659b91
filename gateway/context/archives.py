"""What was left out of chats, ready to be searched, kept for the questions to come. Making it takes time, searching none."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from gateway.context.passages import Archive
from gateway.context.words import Words

MAX_CHARS = 8_000_000
"""Of the texts in all archives; an archive takes about 10 bytes for a character."""

_ENTRY_CHARS = 200
"""What an archive counts beside its texts."""


class Archives:
    """Archives by scope and by what was left out, the least recently used first out. Safe to use from several threads.

    Args:
        max_chars: of all texts; an archive with more than an eighth of it is not kept.
        words: see `Archive`.
    """

    def __init__(self, max_chars: int = MAX_CHARS, words: Words | None = None) -> None:
        self._max_chars = max_chars
        self._words = words
        self._kept: OrderedDict[tuple[str, bytes], tuple[Archive, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.num_chars = 0
        """Held now."""

    def of(self, scope: str, key: bytes, documents: Callable[[], Sequence[tuple[str, str]]]) -> Archive:
        """Give the archive of a cut.

        Args:
            scope: whose chat it is.
            key: names the cut.
            documents: give the name and the text of each document; only asked for where the archive is not kept.
        """
        with self._lock:
            kept = self._kept.get((scope, key))
            if kept is not None:
                self._kept.move_to_end((scope, key))
                return kept[0]
        texts = documents()
        archive = Archive(texts, self._words)
        self._keep((scope, key), archive, _ENTRY_CHARS + sum(len(text) for _, text in texts))
        return archive

    def _keep(self, key: tuple[str, bytes], archive: Archive, num_chars: int) -> None:
        if num_chars > self._max_chars // 8:
            return
        with self._lock:
            _, replaced = self._kept.pop(key, (archive, 0))
            self._kept[key] = archive, num_chars
            self.num_chars += num_chars - replaced
            while self.num_chars > self._max_chars:
                self.num_chars -= self._kept.popitem(last=False)[1][1]
