"""Which blocks of a running sequence are indexed, and when.

While a sequence runs, the index knows a leading run of its blocks, each behind the one before. The run ends where the
sequence has a private twin of a block that is cached elsewhere: a copy made for the sharing cap, or a block that two
requests compute at the same time. All behind is indexed when the sequence ends, behind the twin. Until then a running
sequence would hold blocks whose cached parent it does not hold, and eviction could no longer go leaf first.
"""

from __future__ import annotations

from prefixcache.block_index import NO_BLOCK, BlockIndex
from prefixcache.block_pool import BlockPool
from prefixcache.block_table import BlockTable


class TableIndex:
    """Indexes the blocks of tables."""

    def __init__(self, pool: BlockPool, index: BlockIndex) -> None:
        self._pool = pool
        self._index = index

    def extend(self, table: BlockTable, stop: int) -> None:
        """Index the table's blocks up to `stop` as PENDING; where a hash is taken the table is detached."""
        start = table.num_indexed
        if table.detached or stop <= start:
            return
        parent = table.block_ids[start - 1] if start else NO_BLOCK
        table.num_indexed += self._index.insert(table.block_ids[start:stop], table.tokens, start, parent, table.owner)
        table.detached = table.num_indexed < stop

    def cut(self, table: BlockTable, position: int) -> None:
        """Detach a table at a PENDING block that it is about to replace; who shares that block keeps it indexed."""
        if position < table.num_indexed:
            self._index.remove(table.block_ids[table.num_indexed - 1 : position : -1])
            table.num_indexed = position
            table.detached = True

    def finish(self, table: BlockTable) -> list[int]:
        """Index the computed blocks that were kept private, as READY, while the table still holds them.

        Returns:
            The twins they were put behind: cached blocks with the same content as the table's own at these positions.
        """
        position = table.num_indexed
        stop = table.num_full_computed_blocks
        parent = table.block_ids[position - 1] if position else NO_BLOCK
        twins: list[int] = []
        while position < stop and (twin := self._ready_twin(table, position, parent)) is not None:
            twins.append(twin)
            parent = twin
            position += 1
        own = table.block_ids[position:stop]
        # A block that a fork shares stays private: the fork need not hold the parent that it would get here.
        num_unshared = next((i for i, block in enumerate(own) if self._pool.ref_count[block] > 1), len(own))
        num_new = self._index.insert(own[:num_unshared], table.tokens, position, parent, table.owner)
        self._pool.mark_ready(own[:num_new])
        return twins

    def _ready_twin(self, table: BlockTable, position: int, parent: int) -> int | None:
        tokens = table.tokens
        (key,), (chunk,) = tokens.keys(position, position + 1), tokens.chunks(position, position + 1)
        twin = self._index.find(key, tokens.namespace_at(position), self._index.uid_of(parent), chunk)
        return twin if twin is not None and self._pool.ready[twin] else None
