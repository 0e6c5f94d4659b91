"""The ids of pieces of text that came before: bounded in bytes, least recently used first out.

A key holds the text itself, so a hit is a comparison of characters; and the tenant, so that the time a prompt takes
tells nobody what others sent.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from gateway.tokenizer import TokenArray

_ENTRY_BYTES = 400
"""Of the objects around an entry's text and ids."""


@dataclass(slots=True, eq=False)
class KnownPiece:
    """What is known of one piece."""

    token_ids: TokenArray
    ends: TokenArray | None = None
    """Where each token ends in the text, in characters, once somebody asked."""


class TokenMemo:
    """Safe to use from several threads.

    Args:
        max_bytes: of texts and ids together; one that is larger than a quarter of it is not kept.
    """

    def __init__(self, max_bytes: int = 64 * 2**20) -> None:
        self._max_bytes = max_bytes
        self._known: OrderedDict[Hashable, tuple[KnownPiece, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.num_bytes = 0

    def get(self, key: Hashable) -> KnownPiece | None:
        """Return the piece of an equal key."""
        with self._lock:
            found = self._known.get(key)
            if found is None:
                return None
            self._known.move_to_end(key)
            return found[0]

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._known

    def put(self, key: Hashable, piece: KnownPiece, num_chars: int) -> None:
        """Keep a piece.

        Args:
            key: the text is part of it.
            piece: its ids.
            num_chars: of the text.
        """
        # A character takes up to 4 bytes; the ends are counted although they may never be asked for.
        num_bytes = _ENTRY_BYTES + 4 * num_chars + 2 * piece.token_ids.nbytes
        if num_bytes > self._max_bytes // 4:
            return
        with self._lock:
            old = self._known.pop(key, None)
            self._known[key] = (piece, num_bytes)
            self.num_bytes += num_bytes - (old[1] if old else 0)
            while self.num_bytes > self._max_bytes:
                self.num_bytes -= self._known.popitem(last=False)[1][1]
