"""The blocks that can be evicted now, in the order in which they would be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence


class EvictionQueue:
    """Lanes by rank, lowest first; inside a lane the least recently queued block is first.

    Doubly linked lists over block ids, so that a block leaves from the middle in O(1). Each lane is a ring through a
    sentinel, an id beyond the pool. `ranks` holds the blocks with a rank other than 0 and is read when a block is
    queued.
    """

    def __init__(self, num_blocks: int, ranks: Mapping[int, int]) -> None:
        self._ranks = ranks
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
        if not self._ranks:
            self._append(blocks, 0)
            return
        for block in blocks:
            self._append((block,), self._ranks.get(block, 0))

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
        blocks: list[int] = []
        for rank in sorted(self._sentinels):
            sentinel = self._sentinels[rank]
            block = self._next[sentinel]
            while block != sentinel and len(blocks) < count:
                blocks.append(block)
                block = self._next[block]
        return blocks

    def __contains__(self, block: int) -> bool:
        return self._next[block] >= 0

    def _append(self, blocks: Sequence[int], rank: int) -> None:
        following, previous = self._next, self._previous
        sentinel = self._sentinels.get(rank)
        if sentinel is None:
            sentinel = self._sentinels[rank] = len(following)
            following.append(sentinel)
            previous.append(sentinel)
        last = previous[sentinel]
        for block in blocks:
            following[last] = block
            previous[block] = last
            last = block
        following[last] = sentinel
        previous[sentinel] = last
        self._length += len(blocks)
