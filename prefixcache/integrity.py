"""Recompute what the pool and the index believe, from who holds what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prefixcache.block_index import NO_BLOCK, ROOT_UID, BlockIndex
from prefixcache.block_pool import BlockPool
from prefixcache.block_table import BlockTable, Match
from prefixcache.interface import BlockStateError


def check_integrity(pool: BlockPool, index: BlockIndex, tables: Iterable[BlockTable], matches: Iterable[Match]) -> None:
    """Raise `BlockStateError` with the first difference found; O(pool)."""
    tables = list(tables)
    references = Counter(block for table in tables for block in table.block_ids)
    locks = Counter(pool.pins)
    for match in matches:
        locks.update(match.chain)
        locks.update([match.partial_source] if match.partial_source is not None else [])
    _check_pool(pool, references, locks)
    _check_index(pool, index, references, locks)
    for table in tables:
        _check_table(index, table)


def _expect(name: str, got: object, wanted: object) -> None:
    if got != wanted:
        raise BlockStateError(f"{name}: got {got}, wanted {wanted}")


def _check_pool(pool: BlockPool, references: Counter[int], locks: Counter[int]) -> None:
    everything = range(pool.num_blocks)
    _expect("reference counts", pool.ref_count, [references[block] for block in everything])
    _expect("locks", pool.locks, [locks[block] for block in everything])
    free, queued = list(pool.free), list(pool.queue)
    _expect("free list without repeats", len(set(free)), len(free))
    _expect("eviction queue length", len(queued), len(pool.queue))
    idle = {block for block in everything if not references[block]}
    _expect("blocks that hold nothing", set(free), {block for block in idle if not pool.ready[block]})
    _expect("blocks to evict", sorted(queued), sorted(b for b in idle if pool.ready[b] and not locks[b]))
    _expect("active blocks", pool.num_active, pool.num_blocks - len(idle))
    shared = {block for block in everything if references[block] >= 2} | set(pool.pins)
    _expect("shared blocks", pool.num_shared, len(shared))
    _expect("blocks with a rank", [b for b in pool.ranks if not pool.ready[b]], [])


def _check_index(pool: BlockPool, index: BlockIndex, references: Counter[int], locks: Counter[int]) -> None:
    indexed = {block for block in range(pool.num_blocks) if index.keys[block]}
    _expect("index entries", dict(index.by_key), {index.keys[block]: block for block in indexed})
    _expect(
        "READY blocks that are not indexed",
        [b for b in range(pool.num_blocks) if pool.ready[b] and b not in indexed],
        [],
    )
    place = {block: number for number, block in enumerate(pool.queue)}
    for block in indexed:
        parent = index.parents[block]
        if parent == NO_BLOCK:
            _expect(f"parent uid of root block {block}", index.parent_uids[block], ROOT_UID)
            continue
        _expect(f"parent of block {block} indexed", parent in indexed, True)
        _expect(f"parent uid of block {block}", index.parent_uids[block], index.uids[parent])
        _expect(f"READY block {block} behind a READY one", pool.ready[parent] >= pool.ready[block], True)
        if references[block] or locks[block]:
            _expect(f"held block {block} with a held parent", bool(references[parent] or locks[parent]), True)
        elif parent in place:
            _expect(f"block {block} evicted before its parent", place[block] < place[parent], True)
    _expect("children listed", sorted(index.every_child()), sorted(indexed))


def _check_table(index: BlockIndex, table: BlockTable) -> None:
    parent = NO_BLOCK
    for position, block in enumerate(table.block_ids[: table.num_indexed]):
        _expect(f"chunk of block {block}", index.chunks[block], table.tokens.chunks(position, position + 1)[0])
        _expect(f"namespace of block {block}", index.namespaces[block], table.tokens.namespace_at(position))
        _expect(f"parent of block {block}", index.parents[block], parent)
        parent = block
