"""Hashes of evicted blocks, so that a miss can be told apart as `evicted` or never seen."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

SMALLEST_TABLE = 1024


class GhostList:
    """A fixed table of 8-byte fingerprints; a newer ghost overwrites an older one that falls on the same slot.

    At most half full when it holds `capacity` ghosts. It only ever explains a miss, so forgetting is harmless.
    """

    def __init__(self, capacity: int) -> None:
        size = SMALLEST_TABLE
        while capacity and size < 2 * capacity:
            size *= 2
        self._enabled = capacity > 0
        self._mask = size - 1
        self._table = array("Q", bytes(8 * (size if capacity else 0)))

    def add(self, keys: Iterable[bytes]) -> None:
        """Remember evicted hashes."""
        if not self._enabled:
            return
        table, mask, number = self._table, self._mask, int.from_bytes
        for key in keys:
            fingerprint = number(key[:8], "little") | 1
            table[(fingerprint >> 1) & mask] = fingerprint

    def __contains__(self, key: bytes) -> bool:
        if not self._enabled:
            return False
        fingerprint = int.from_bytes(key[:8], "little") | 1
        return self._table[(fingerprint >> 1) & self._mask] == fingerprint
