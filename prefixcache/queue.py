"""The blocks that can be evicted now, in the order in which they would be."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice


class EvictionQueue:
    """Lanes by rank, lowest first; inside a lane the least recently queued block is first.

    Doubly linked lists over block ids, so that a block leaves from the middle in O(1). Each lane is a ring through a
    sentinel, an id beyond the pool. `ranks` holds the blocks with a rank other than 0. While it holds any, queued
    blocks are numbered as they come, so that one that changes lanes finds its place there.
    """

    def __init__(self, num_blocks: int) -> None:
        self.ranks: dict[int, int] = {}
        self._numbers = array("Q")
        self._last_number = 0
        self._num_blocks = num_blocks
        self._next = [-1] * num_blocks
        self._previous = [-1] * num_blocks
        self._sentinels: dict[int, int] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        """Blocks in the order of eviction."""
        for rank in sorted(self._sentinels):
            sentinel = self._sentinels[rank]
            block = self._next[sentinel]
            while block != sentinel:
                yield block
                block = self._next[block]

    def extend(self, blocks: Sequence[int]) -> None:
        """Queue blocks at the end of their lanes, in this order."""
        if not self.ranks:
            self._insert(blocks, before=self._sentinel(0))
            return
        self._number(blocks)
        for block in blocks:
            self._insert((block,), before=self._sentinel(self.ranks.get(block, 0)))

    def change_ranks(self, ranks: Mapping[int, int]) -> None:
        """Give blocks, queued or not, other ranks; how recently they were queued stays."""
        if ranks and not self.ranks:
            self._numbers = self._numbers or array("Q", bytes(8 * self._num_blocks))
            self._number(self)
        moved = sorted((block for block in ranks if block in self), key=self._numbers.__getitem__)
        self.remove(moved)
        self.ranks.update(ranks)
        places: dict[int, int] = {}
        for block in moved:
            sentinel = self._sentinel(ranks[block])
            place = places.get(sentinel, self._next[sentinel])
            while place != sentinel and self._numbers[place] < self._numbers[block]:
                place = self._next[place]
            places[sentinel] = place
            self._insert((block,), before=place)
        for block in [block for block in ranks if not self.ranks[block]]:
            del self.ranks[block]

    def remove(self, blocks: Sequence[int]) -> None:
        """Take queued blocks out; each must be queued."""
        following, previous = self._next, self._previous
        for block in blocks:
            before, after = previous[block], following[block]
            following[before] = after
            previous[after] = before
            following[block] = -1
        self._length -= len(blocks)

    def first(self, count: int) -> list[int]:
        """The next `count` blocks to evict; they stay queued."""
        return list(islice(self, count))

    def __contains__(self, block: int) -> bool:
        return self._next[block] >= 0

    def _number(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._last_number += 1
            self._numbers[block] = self._last_number

    def _sentinel(self, rank: int) -> int:
        """The sentinel of a lane; a new lane takes that of an empty one, so that lanes nobody uses do not pile up."""
        if rank not in self._sentinels:
            empty = next((old for old, sentinel in self._sentinels.items() if self._next[sentinel] == sentinel), None)
            if empty is None:
                sentinel = len(self._next)
                self._next.append(sentinel)
                self._previous.append(sentinel)
            else:
                sentinel = self._sentinels.pop(empty)
            self._sentinels[rank] = sentinel
        return self._sentinels[rank]

    def _insert(self, blocks: Sequence[int], *, before: int) -> None:
        following, previous = self._next, self._previous
        last = previous[before]
        for block in blocks:
            following[last] = block
            previous[block] = last
            last = block
        following[last] = before
        previous[before] = last
        self._length += len(blocks)
