"""Who holds which block: reference counts, locks, pins, the free list and the eviction queue.

The only writer of `ref_count`. Knows nothing of tokens or hashes. A block is in exactly one state:

    free      in the free list, holds nothing
    PENDING   a table holds it, its KV is not computed
    READY     its KV is computed and can be matched; without a holder it waits in the eviction queue

A READY block is *held* while a table refers to it, or while a match or a pin locks it. Holders take and leave whole
chains, a parent before its child and the child before its parent. So a held block has a held parent, a chain enters
the queue tail first, and eviction is leaf first without ever looking at the tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prefixcache.interface import BlockStateError, CacheSnapshot
from prefixcache.policy import Policy, lru
from prefixcache.queue import EvictionQueue


class BlockPool:
    """All blocks, by id. Shortage is the caller's to ask for (`num_available`); misuse raises."""

    def __init__(self, num_blocks: int, policy: Policy = lru) -> None:
        self._policy = policy
        self.num_blocks = num_blocks
        self.ref_count = [0] * num_blocks
        """Tables that refer to the block."""
        self.locks = [0] * num_blocks
        """Matches and pins that keep the block from eviction."""
        self.ready = bytearray(num_blocks)
        """1: READY."""
        self.pins: dict[int, int] = {}
        """How many pins each pinned block has."""
        self.queue = EvictionQueue(num_blocks)
        self.ranks = self.queue.ranks
        """Sort keys of the eviction policy other than 0."""
        self.free = list(range(num_blocks - 1, -1, -1))
        """A stack; the next block to hand out is last."""
        self.num_active = 0
        self.num_shared = 0
        self.num_shared_max = 0
        self.num_pinned_max = 0

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out now: free ones and those that can be evicted."""
        return len(self.free) + len(self.queue)

    def allocate(self, count: int) -> tuple[list[int], list[int]]:
        """Hand out blocks as PENDING with one reference each.

        Returns:
            All of them, and those among them that were evicted for it, which the index must forget.
        """
        if count > self.num_available:
            raise BlockStateError(f"{count} blocks asked for, {self.num_available} available")
        free = self.free
        split = max(0, len(free) - count)
        blocks = free[split:][::-1]
        evicted = self.queue.first(count - len(blocks))
        del free[split:]
        if evicted:
            self.queue.remove(evicted)
            for block in evicted:
                self.ready[block] = 0
            if self.ranks:
                for block in evicted:
                    self.ranks.pop(block, None)
        blocks += evicted
        for block in blocks:
            self.ref_count[block] = 1
        self.num_active += count
        return blocks, evicted

    def reference(self, blocks: Sequence[int]) -> None:
        """One more table refers to these blocks, which are locked or referenced already."""
        ref_count = self.ref_count
        for block in blocks:
            count = ref_count[block]
            ref_count[block] = count + 1
            if count == 0:
                self.num_active += 1
            elif count == 1 and block not in self.pins:
                self.num_shared += 1
        self.num_shared_max = max(self.num_shared_max, self.num_shared)

    def release(self, blocks: Sequence[int]) -> list[int]:
        """A table lets go of its blocks; pass the tail first.

        Returns:
            The blocks that hold nothing of use any more. They are free now; the index must forget them.
        """
        ref_count, locks, ready = self.ref_count, self.locks, self.ready
        idle, dropped = [], []
        for block in blocks:
            count = ref_count[block] - 1
            if count > 0:
                if count == 1 and block not in self.pins:
                    self.num_shared -= 1
            elif count < 0:
                raise BlockStateError(f"block {block} has no reference to release")
            else:
                self.num_active -= 1
                if not ready[block]:
                    dropped.append(block)
                elif not locks[block]:
                    idle.append(block)
            ref_count[block] = count
        self.queue.extend(idle)
        self.free += dropped
        return dropped

    def lock(self, blocks: Sequence[int]) -> None:
        """Keep READY blocks from eviction."""
        ref_count, locks = self.ref_count, self.locks
        self.queue.remove([block for block in blocks if not (locks[block] or ref_count[block])])
        for block in blocks:
            locks[block] += 1

    def unlock(self, blocks: Sequence[int]) -> None:
        """Undo a `lock`; pass the tail first."""
        ref_count, locks = self.ref_count, self.locks
        idle = []
        for block in blocks:
            count = locks[block] - 1
            if count < 0:
                raise BlockStateError(f"block {block} is not locked")
            locks[block] = count
            if not (count or ref_count[block]):
                idle.append(block)
        self.queue.extend(idle)

    def has_one_lock_only(self, block: int) -> bool:
        """Whether the block can be evicted as soon as one match or pin unlocks it."""
        return self.locks[block] == 1 and not self.ref_count[block]

    def mark_ready(self, blocks: Sequence[int]) -> None:
        """The KV of these blocks is computed and accepted."""
        for block in blocks:
            self.ready[block] = 1

    def drop(self, blocks: Sequence[int]) -> None:
        """Free READY blocks that nobody holds; the index must forget them."""
        self.queue.remove(blocks)
        for block in blocks:
            self.ready[block] = 0
            self.ranks.pop(block, None)
        self.free += blocks

    def touch(self, block: int) -> None:
        """Move a block that may be queued to the end of its lane."""
        if block in self.queue:
            self.queue.remove((block,))
            self.queue.extend((block,))

    def prioritize(self, priorities: Mapping[int, int]) -> None:
        """Give READY blocks new priorities; how recently they were used stays."""
        ranks = {block: self._policy(priority) for block, priority in priorities.items()}
        self.queue.change_ranks({block: rank for block, rank in ranks.items() if rank != self.ranks.get(block, 0)})

    def snapshot(
        self, *, shared_blocks_limit: int, pinned_blocks_limit: int, counters: dict[str, int]
    ) -> CacheSnapshot:
        """Count the blocks by state; O(pins). What only others know is handed on."""
        num_free = len(self.free)
        num_active_shared = self.num_shared - sum(not self.ref_count[block] for block in self.pins)
        return CacheSnapshot(
            total_blocks=self.num_blocks,
            free_blocks=num_free,
            cached_blocks=self.num_blocks - num_free - self.num_active,
            active_blocks=self.num_active,
            active_private_blocks=self.num_active - num_active_shared,
            active_shared_blocks=num_active_shared,
            shared_blocks=self.num_shared,
            pinned_blocks=len(self.pins),
            shared_blocks_max=self.num_shared_max,
            pinned_blocks_max=self.num_pinned_max,
            shared_blocks_limit=shared_blocks_limit,
            pinned_blocks_limit=pinned_blocks_limit,
            counters=counters,
        )

    def is_shared(self, block: int) -> bool:
        """Whether two tables refer to the block, or a pin keeps it."""
        return self.ref_count[block] >= 2 or block in self.pins

    def pin(self, blocks: Sequence[int]) -> None:
        """Lock READY blocks until `unpin`; each counts as shared."""
        self.lock(blocks)
        for block in blocks:
            self.num_shared += not self.is_shared(block)
            self.pins[block] = self.pins.get(block, 0) + 1
        self.num_shared_max = max(self.num_shared_max, self.num_shared)
        self.num_pinned_max = max(self.num_pinned_max, len(self.pins))

    def unpin(self, blocks: Sequence[int]) -> None:
        """Undo a `pin`; pass the tail first."""
        self.unlock(blocks)
        for block in blocks:
            self.pins[block] -= 1
            if not self.pins[block]:
                del self.pins[block]
                self.num_shared -= not self.is_shared(block)
