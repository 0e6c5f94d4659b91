"""A list of which each entry is made when somebody asks for it, and once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, overload

T = TypeVar("T")  # None is no entry


class Lazy(Sequence[T]):
    """Not safe to use from several threads.

    Args:
        length: of the list.
        make: gives the entry of an index, at least 0.
    """

    def __init__(self, length: int, make: Callable[[int], T]) -> None:
        self._length = length
        self._make = make
        self._made: dict[int, T] = {}

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self[entry] for entry in range(*index.indices(self._length))]
        made = self._made.get(index)
        if made is None:
            place = range(self._length)[index]
            made = self._made[place] = self._make(place)
        return made
