"""What paging, sharing and int8 bring together: chats that run at the same time in one memory budget.

Counted with the real cache's own admission, growth reserve and sharing cap, against a cache that gives each chat a
contiguous 16-bit buffer of the longest length.
"""

from __future__ import annotations

import numpy as np
import pytest

from engine.kv_layout import KVLayout
from prefixcache import PrefixCache, PrefixCacheConfig, Prompt, Scope, hash_blocks, namespace

MAX_MODEL_LEN = 4096
CHAT_TOKENS, SYSTEM_TOKENS, ANSWER_TOKENS = 2048, 1024, 256
BLOCK = 32
BUDGET_BYTES = 4 * 2**30
SCOPES = (Scope(namespace({"model": "m"}, scope="tenant:a"), 0),)


def make_prompt(chat: int) -> Prompt:
    """The system prompt that all share, and a question that nobody else asks."""
    own = np.full(CHAT_TOKENS - ANSWER_TOKENS - SYSTEM_TOKENS, 5000 + chat)
    tokens = np.concatenate((np.arange(SYSTEM_TOKENS), own)).astype(np.int32)
    return Prompt(tokens, hash_blocks(tokens, block_size=BLOCK, scopes=SCOPES, seed=0), SCOPES, hash_epoch=0)


def num_chats_at_once(layout: KVLayout) -> int:
    """Admit, prefill and answer chats in full until one is not admitted; none is preempted."""
    cache = PrefixCache(PrefixCacheConfig(BUDGET_BYTES // layout.block_bytes, block_size=BLOCK))
    for chat in range(10_000):
        with cache.match(make_prompt(chat)) as match:
            allocation = cache.admit(match, max_new_tokens=ANSWER_TOKENS)
        if allocation is None:
            return chat
        assert allocation.num_cached_tokens == (SYSTEM_TOKENS if chat else 0)
        cache.commit(allocation.table, CHAT_TOKENS - ANSWER_TOKENS)
        copies = cache.grow(allocation.table, CHAT_TOKENS)
        assert copies == []
        cache.commit(allocation.table, CHAT_TOKENS, range(ANSWER_TOKENS))
    raise AssertionError("the pool has no end")


@pytest.mark.parametrize("head_dim", [64, 128], ids=["D64", "D128"])
@pytest.mark.parametrize(("kind", "least"), [("auto", 3), ("int8/hadamard", 6), ("int8/per_token", 6)])
def test_one_budget_runs_several_times_as_many_chats(kind, least, head_dim):
    contiguous = BUDGET_BYTES // (MAX_MODEL_LEN * KVLayout(30, 3, head_dim).block_bytes // BLOCK)
    assert num_chats_at_once(KVLayout(30, 3, head_dim, kind, block_size=BLOCK)) >= least * contiguous
