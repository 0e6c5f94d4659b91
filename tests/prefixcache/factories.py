"""Small prompts and caches for the tests of the prefix cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prefixcache import Allocation, BlockTable, PrefixCache, PrefixCacheConfig, Prompt, Scope, hash_blocks, namespace
from prefixcache.hashing import Hasher, xxh3_128

BLOCK = 8
MODEL = {"model": "tiny", "dtype": "int8"}
PUBLIC = namespace(MODEL, scope="public")
TENANT_A = namespace(MODEL, scope="tenant:a")
TENANT_B = namespace(MODEL, scope="tenant:b")


def make_cache(num_blocks: int = 8, *, hasher: Hasher = xxh3_128, **settings) -> PrefixCache:
    """A cache of small blocks; the cap and the reserve are off unless a test sets them."""
    defaults = {"block_size": BLOCK, "max_shared_ratio": 1.0, "growth_reserve": 0}
    return PrefixCache(PrefixCacheConfig(num_blocks, **(defaults | settings)), hasher=hasher)


def make_prompt(*parts: int | Sequence[int], scopes: Sequence[Scope] = (Scope(TENANT_A, 0),), epoch: int = 0) -> Prompt:
    """A number n stands for a whole block that only n has; a list stands for its tokens."""
    tokens: list[int] = []
    for part in parts:
        tokens += range(100 * part, 100 * part + BLOCK) if isinstance(part, int) else part
    array = np.array(tokens, dtype=np.int32)
    hashes = hash_blocks(array, block_size=BLOCK, scopes=scopes, seed=0)
    return Prompt(token_ids=array, block_hashes=hashes, scopes=tuple(scopes), hash_epoch=epoch)


def admit(
    cache: PrefixCache, prompt: Prompt, *, max_new_tokens: int = 0, num_sequences: int = 1, owner: int = 0
) -> Allocation:
    """Match and admit; the request must fit."""
    with cache.match(prompt) as match:
        allocation = cache.admit(match, max_new_tokens=max_new_tokens, num_sequences=num_sequences, owner=owner)
    cache.check_integrity()
    assert allocation is not None
    return allocation


def compute(cache: PrefixCache, table: BlockTable) -> BlockTable:
    """Prefill all of a prompt."""
    cache.commit(table, table.num_tokens)
    cache.check_integrity()
    return table


def serve(cache: PrefixCache, prompt: Prompt, *, owner: int = 0) -> Allocation:
    """Run a request that generates nothing from start to end."""
    allocation = admit(cache, prompt, owner=owner)
    cache.free(compute(cache, allocation.table))
    cache.check_integrity()
    return allocation
