"""What is remembered of earlier requests, for all tenants, in bounded memory. Knows nothing of turns or rules.

A restart, or a bound that is reached, loses reuse and never correctness: whoever remembers can do without.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

MAX_BYTES = 64 * 1024 * 1024
"""About 15,000 turns of 1,000 characters with their tokens."""
ENTRY_BYTES = 512
"""What an entry takes beside its value: digest, size, two slots of a dictionary, and perhaps a scope of its own."""
_MAX_SHARE = 8
"""A value larger than this part of the memory would push out too much else."""


@dataclass(slots=True)
class _Shelf:
    """What one scope has, the least recently used first."""

    entries: OrderedDict[bytes, tuple[Any, int]] = field(default_factory=OrderedDict)
    num_bytes: int = 0


class TurnMemory:
    """Values by scope and key. Safe to call from several threads; nothing is ever found in another scope.

    Where it is full, the scope that holds the most gives way, with what it used least recently: a tenant that floods
    the memory pushes out its own.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._shelves: dict[str, _Shelf] = {}
        self._num_bytes = 0
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Held now, by estimate."""
        return self._num_bytes

    @property
    def num_entries(self) -> int:
        """Held now; bounded, because each one counts at least `ENTRY_BYTES`."""
        with self._lock:
            return sum(len(shelf.entries) for shelf in self._shelves.values())

    def has(self, scope: str) -> bool:
        """Whether anything is remembered for a scope."""
        return scope in self._shelves

    def find(self, scope: str, key: bytes) -> Any:
        """Return a value; None: it was never kept, or it is forgotten."""
        with self._lock:
            return self._find(scope, key)

    def keep(self, scope: str, key: bytes, value: object, *, num_bytes: int | None = None) -> None:
        """Remember a value, in the place of an older one. It must not change from now on.

        Args:
            scope: whose it is.
            key: by which it is found.
            value: what it is.
            num_bytes: that it takes; None: what its fields take.
        """
        num_bytes = ENTRY_BYTES + (size_of(value) if num_bytes is None else num_bytes)
        with self._lock:
            self._put(scope, key, value, num_bytes)

    def keep_first(self, scope: str, key: bytes, value: object) -> Any:
        """Remember a value unless there is one. Returns: the one that is remembered."""
        with self._lock:
            found = self._find(scope, key)
            if found is None:
                found = value
                self._put(scope, key, value, ENTRY_BYTES + size_of(value))
            return found

    def _find(self, scope: str, key: bytes) -> Any:
        shelf = self._shelves.get(scope)
        entry = shelf.entries.get(key) if shelf else None
        if shelf is None or entry is None:
            return None
        shelf.entries.move_to_end(key)
        return entry[0]

    def _put(self, scope: str, key: bytes, value: object, num_bytes: int) -> None:
        self._drop(scope, key)
        if num_bytes > self._max_bytes // _MAX_SHARE:
            return
        shelf = self._shelves.setdefault(scope, _Shelf())
        shelf.entries[key] = (value, num_bytes)
        shelf.num_bytes += num_bytes
        self._num_bytes += num_bytes
        while self._num_bytes > self._max_bytes:
            fullest = max(self._shelves, key=lambda name: self._shelves[name].num_bytes)
            self._drop(fullest, next(iter(self._shelves[fullest].entries)))

    def _drop(self, scope: str, key: bytes) -> None:
        shelf = self._shelves.get(scope)
        entry = shelf.entries.pop(key, None) if shelf else None
        if shelf is None or entry is None:
            return
        shelf.num_bytes -= entry[1]
        self._num_bytes -= entry[1]
        if not shelf.entries:
            del self._shelves[scope]


def size_of(value: object) -> int:
    """Estimate the bytes of a JSON value, an array, or a data class of such. What it shares counts each time."""
    size = sys.getsizeof(value)
    if value is None or isinstance(value, str | bytes):  # nearly all of them
        return size
    if isinstance(value, Mapping):
        return size + sum(size_of(name) + size_of(entry) for name, entry in value.items())
    if isinstance(value, list | tuple | frozenset):
        return size + sum(map(size_of, value))
    if is_dataclass(value):
        return size + sum(size_of(getattr(value, name)) for name in _field_names(value.__class__))
    return size


@functools.cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(entry.name for entry in fields(kind))
