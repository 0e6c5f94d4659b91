"""How many blocks a request may still need: the growth reserve that keeps running requests from stalling each other."""

from __future__ import annotations

from prefixcache.block_table import BlockTable
from prefixcache.interface import PrefixCacheConfig


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold this many tokens."""
    return -(-num_tokens // block_size)


def reserved_blocks(
    config: PrefixCacheConfig, *, num_tokens: int, num_blocks: int, max_tokens: int, num_sequences: int
) -> int:
    """Blocks to keep for a request beyond the `num_blocks` it has: growth of every sequence and one copy.

    Sequences that are still to be forked share the full blocks and need a block of their own for the rest.
    """
    if config.growth_reserve == 0:
        return 0
    grown = blocks_for(min(max_tokens, num_tokens + config.growth_reserve), config.block_size)
    forks = (num_sequences - 1) * max(0, grown - num_tokens // config.block_size)
    return max(0, grown - num_blocks) + forks + 1


def table_reserve(config: PrefixCacheConfig, table: BlockTable) -> int:
    """What a running sequence has reserved now."""
    return reserved_blocks(
        config,
        num_tokens=table.num_tokens,
        num_blocks=len(table.block_ids),
        max_tokens=table.max_tokens,
        num_sequences=table.num_sequences,
    )
