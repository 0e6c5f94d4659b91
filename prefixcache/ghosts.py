"""Hashes of evicted blocks, so that a miss can be told apart as `evicted` or never seen."""

from __future__ import annotations

from array import array
from collections.abc import Collection

SMALLEST_TABLE = 1 << 16
_LOW = 0xFFFF_FFFF
_USED = 1 << 32
_HIGH = _LOW << 32


class GhostList:
    """A fixed table of 31-bit fingerprints; a newer ghost overwrites an older one that falls on the same slot.

    At most half full when it holds `capacity` ghosts. It only ever explains a miss, so forgetting is harmless. The lower
    half of an entry is the number of the eviction, which wraps.
    """

    def __init__(self, capacity: int) -> None:
        size = SMALLEST_TABLE
        while capacity and size < 2 * capacity:
            size *= 2
        self._enabled = capacity > 0
        self._mask = size - 1
        self._table = array("Q", bytes(8 * (size if capacity else 0)))
        self._num_added = 0

    def add(self, keys: Collection[bytes]) -> None:
        """Remember evicted hashes."""
        if not self._enabled:
            return
        table, mask, number = self._table, self._mask, int.from_bytes
        for count, key in enumerate(keys, self._num_added + 1):
            digest = number(key[:8], "little")
            table[digest & mask] = (digest & _HIGH) | _USED | (count & _LOW)
        self._num_added += len(keys)

    def evictions_since(self, key: bytes) -> int | None:
        """How many were added after this one; None: it is not here (any more)."""
        if not self._enabled:
            return None
        digest = int.from_bytes(key[:8], "little")
        entry = self._table[digest & self._mask]
        if entry >> 32 != (digest | _USED) >> 32:
            return None
        return (self._num_added - entry) & _LOW
