"""Keeping prompts: pins, which are never evicted, and priorities, which are evicted later.

Both cover the whole READY chain from the root on, so a block's ancestors are kept at least as well as the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prefixcache.admission import blocks_for
from prefixcache.block_index import BlockIndex
from prefixcache.block_pool import BlockPool
from prefixcache.block_table import BlockTable
from prefixcache.interface import BlockStateError, Pin, PinRefusal, PinResult


@dataclass(frozen=True, slots=True, eq=False)
class Priority:
    """A claim that blocks are evicted after all those of a lower priority, up to a moment."""

    level: int
    expires_at: float
    blocks: tuple[tuple[int, int], ...]
    """(block, uid), from the root on; an evicted block's claim ends with it."""


class Retention:
    """All pins and priorities of one cache."""

    def __init__(self, pool: BlockPool, index: BlockIndex, max_pinned_blocks: int) -> None:
        self._pool = pool
        self._index = index
        self.max_pinned_blocks = max_pinned_blocks
        self._pins: dict[Pin, None] = {}
        self._priorities: dict[Priority, None] = {}

    def pin(self, blocks: Sequence[int], max_shared_blocks: int, tables: Sequence[BlockTable]) -> PinResult:
        """Pin a READY chain if both budgets allow it and each running table can still reach its end beside all pins."""
        pool = self._pool
        num_new = sum(block not in pool.pins for block in blocks)
        num_newly_shared = sum(not pool.is_shared(block) for block in blocks)
        refusal = None
        if not blocks:
            refusal = PinRefusal.NOT_CACHED
        elif len(pool.pins) + num_new > self.max_pinned_blocks:
            refusal = PinRefusal.PINNED_RATIO
        elif num_newly_shared and pool.num_shared + num_newly_shared > max_shared_blocks:
            refusal = PinRefusal.SHARED_RATIO
        elif any(self._is_stopped_by(blocks, table) for table in tables):
            refusal = PinRefusal.RUNNING_REQUEST
        if refusal is not None:
            return PinResult(None, refusal, len(blocks))
        pin = Pin(tuple(blocks))
        pool.pin(blocks)
        self._pins[pin] = None
        return PinResult(pin, None, len(blocks))

    def _is_stopped_by(self, blocks: Sequence[int], table: BlockTable) -> bool:
        """Whether a table could not grow to its end, even alone, beside all pins and these blocks pinned."""
        pinned = {*self._pool.pins, *blocks}.difference(table.block_ids)
        return len(pinned) + blocks_for(table.max_tokens, table.block_size) > self._pool.num_blocks

    def unpin(self, pin: Pin) -> None:
        """Give a pin back."""
        if pin not in self._pins:
            raise BlockStateError("the pin is given back already, or of another cache")
        self._pool.unpin(pin.blocks[::-1])
        del self._pins[pin]

    def prioritize(self, blocks: Sequence[int], level: int, expires_at: float) -> Priority:
        """Evict a READY chain only after all blocks of a lower level."""
        if level < 1:
            raise ValueError(f"level: got {level}, wanted at least 1")
        priority = Priority(level, expires_at, tuple((block, self._index.uids[block]) for block in blocks))
        self._priorities[priority] = None
        self._apply(priority)
        return priority

    def end(self, priority: Priority) -> None:
        """Give a priority back; harmless when it has expired."""
        if self._priorities.pop(priority, False) is None:
            self._apply(priority)

    def expire(self, now: float) -> None:
        """End the priorities whose time is over; `now` is in the caller's own units."""
        for priority in [priority for priority in self._priorities if priority.expires_at <= now]:
            self.end(priority)

    def _apply(self, changed: Priority) -> None:
        levels: dict[int, int] = {}
        for priority in self._priorities:
            for block in self._alive(priority):
                levels[block] = max(priority.level, levels.get(block, 0))
        self._pool.prioritize({block: levels.get(block, 0) for block in self._alive(changed)})

    def _alive(self, priority: Priority) -> list[int]:
        index = self._index
        return [block for block, uid in priority.blocks if index.keys[block] and index.uids[block] == uid]
