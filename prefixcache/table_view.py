"""What the blocks of a running sequence look like to whoever wants to see them. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from prefixcache.block_pool import BlockPool
from prefixcache.block_table import BlockTable
from prefixcache.interface import BlockState, BlockView


@dataclass(frozen=True, slots=True)
class TableView:
    """A block table at one moment, in columns: taken of every request at its end, and seldom looked at."""

    block_size: int
    num_indexed: int
    num_computed_tokens: int
    block_ids: list[int]
    ref_counts: list[int]
    ready: bytes
    pinned: frozenset[int]

    @classmethod
    def of(cls, table: BlockTable, pool: BlockPool) -> TableView:
        """Copy what there is to know."""
        blocks = table.block_ids
        return cls(
            block_size=table.block_size,
            num_indexed=table.num_indexed,
            num_computed_tokens=table.num_computed_tokens,
            block_ids=blocks.copy(),
            ref_counts=list(map(pool.ref_count.__getitem__, blocks)),
            ready=bytes(map(pool.ready.__getitem__, blocks)),
            pinned=frozenset(pool.pins.keys() & blocks) if pool.pins else frozenset(),
        )

    def blocks(self) -> list[BlockView]:
        """Describe every block, in order."""
        return [
            BlockView(
                block_id=block,
                state=self._state(position),
                ref_count=self.ref_counts[position],
                shared=self.ref_counts[position] > 1 or block in self.pinned,
                pinned=block in self.pinned,
                num_tokens=min(self.block_size, max(0, self.num_computed_tokens - position * self.block_size)),
            )
            for position, block in enumerate(self.block_ids)
        ]

    def _state(self, position: int) -> BlockState:
        if self.ready[position]:
            return BlockState.READY
        return BlockState.PENDING if position < self.num_indexed else BlockState.PRIVATE
