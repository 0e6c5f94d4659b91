"""`check_integrity` finds every count that is off, and the values that cross the border refuse nonsense."""

from __future__ import annotations

import numpy as np
import pytest

import prefixcache
from prefixcache import BlockStateError, PrefixCacheConfig, Prompt, Scope
from tests.prefixcache.factories import TENANT_A, admit, compute, make_cache, make_prompt, serve


def busy_cache():
    cache = make_cache(12, policy="priority", max_pinned_ratio=0.25)
    serve(cache, make_prompt(1, 2, [9]))
    serve(cache, make_prompt(1, 3, [9]))
    cache.pin(make_prompt(1))
    compute(cache, admit(cache, make_prompt(4, [9])).table)
    admit(cache, make_prompt(4, 5, [7]))
    return cache


def swap_queue(cache) -> None:
    first, *_, last = cache._pool.queue
    cache._pool.queue.remove((first, last))
    cache._pool.queue.extend((last, first))


CORRUPTIONS = {
    "reference counts": lambda c: c._pool.ref_count.__setitem__(0, 5),
    "locks": lambda c: c._pool.locks.__setitem__(0, 0),
    "free list": lambda c: c._pool.free.append(c._pool.free[0]),
    "hold nothing": lambda c: c._pool.free.pop(),
    "to evict": lambda c: c._pool.queue.remove(c._pool.queue.first(1)),
    "queue length": lambda c: setattr(c._pool.queue, "_length", 0),
    "active blocks": lambda c: setattr(c._pool, "num_active", 0),
    "shared blocks": lambda c: setattr(c._pool, "num_shared", 0),
    "with a rank": lambda c: c._pool.ranks.__setitem__(c._pool.free[0], 1),
    "index entries": lambda c: c._index.by_key.popitem(),
    "children listed": lambda c: c._index._openings.popitem(),
    "parent uid of block": lambda c: c._index.parent_uids.__setitem__(2, 99),
    "parent uid of root": lambda c: c._index.parent_uids.__setitem__(0, 99),
    "chunk of block": lambda c: c._index.chunks.__setitem__(next(iter(c._tables)).block_ids[0], b""),
    "not indexed": lambda c: c._pool.ready.__setitem__(next(iter(c._tables)).block_ids[-1], 1),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_check_integrity_finds(name):
    cache = busy_cache()
    cache.check_integrity()
    CORRUPTIONS[name](cache)
    with pytest.raises(BlockStateError, match=name):
        cache.check_integrity()


def test_check_integrity_finds_a_parent_before_its_child_in_the_queue():
    cache = make_cache(4)
    serve(cache, make_prompt(1, 2))
    swap_queue(cache)
    with pytest.raises(BlockStateError, match="evicted before its parent"):
        cache.check_integrity()


@pytest.mark.parametrize(
    "settings",
    [
        {"block_size": 12},
        {"num_blocks": 0},
        {"policy": "fifo"},
        {"max_pinned_ratio": 0.6},
        {"max_shared_ratio": 1.5},
        {"growth_reserve": -1},
    ],
)
def test_config_out_of_range_raises(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        PrefixCacheConfig(**({"num_blocks": 8} | settings))


@pytest.mark.parametrize(("tokens", "scopes", "name"), [([], [Scope(TENANT_A, 0)], "token_ids"), ([1], [], "scopes")])
def test_match_empty_prompt_or_no_scope_raises(tokens, scopes, name):
    with pytest.raises(ValueError, match=name):
        make_cache().match(Prompt(np.array(tokens, dtype=np.int32), b"", tuple(scopes), 0))


def test_pool_misuse_raises():
    cache = make_cache(2)
    with pytest.raises(BlockStateError, match="asked for"):
        cache._pool.allocate(3)
    with pytest.raises(BlockStateError, match="no reference"):
        cache._pool.release([0])
    with pytest.raises(BlockStateError, match="not locked"):
        cache._pool.unlock([0])


def test_all_names_are_importable_and_sorted():
    assert prefixcache.__all__ == sorted(prefixcache.__all__)
    assert all(hasattr(prefixcache, name) for name in prefixcache.__all__)
