"""Full blocks and partial tails are found again, by identity and never by hash alone."""

from __future__ import annotations

import pytest

from prefixcache import BlockStateError, CopyOp, Reason
from tests.prefixcache.factories import BLOCK, admit, compute, make_cache, make_prompt, serve


def test_admit_empty_cache_takes_blocks_in_order():
    cache = make_cache(4)
    allocation = admit(cache, make_prompt(1, 2, [9]))
    assert allocation.table.block_ids == [0, 1, 2]
    assert allocation.num_cached_tokens == 0
    assert allocation.reasons == {Reason.NEVER_CACHED: 3}
    assert allocation.copies == []


def test_admit_second_request_shares_full_blocks():
    cache = make_cache(8)
    serve(cache, make_prompt(1, 2, [9]))
    allocation = admit(cache, make_prompt(1, 2, [7, 7]))
    assert allocation.table.block_ids[:2] == [0, 1]
    assert allocation.num_cached_tokens == 2 * BLOCK
    assert allocation.reasons == {Reason.HIT: 2, Reason.NEVER_CACHED: 1}


def test_match_whole_prompt_cached_leaves_the_last_token_to_compute():
    cache = make_cache(8, min_partial_tokens=7)
    serve(cache, make_prompt(1, 2))
    allocation = admit(cache, make_prompt(1, 2))
    assert allocation.num_cached_tokens == 2 * BLOCK - 1
    assert allocation.copies == [CopyOp(1, allocation.table.block_ids[1], BLOCK - 1)]
    assert allocation.reasons == {Reason.HIT: 1, Reason.COPIED: 1}


def test_match_takes_full_blocks_only_where_blocks_cannot_be_cut():
    cache = make_cache(8, min_partial_tokens=1, reuse_partial_blocks=False)
    serve(cache, make_prompt(1, 2))
    allocation = admit(cache, make_prompt(1, 2))
    assert allocation.num_cached_tokens == BLOCK
    assert allocation.copies == []
    assert allocation.reasons == {Reason.HIT: 1, Reason.BELOW_MIN_REUSE: 1}


def test_match_pending_block_is_not_reused_but_reported():
    cache = make_cache(8)
    first = admit(cache, make_prompt(1, 2, [9])).table
    with cache.match(make_prompt(1, 2, [7])) as match:
        assert (match.num_cached_tokens, match.num_pending_tokens) == (0, 2 * BLOCK)
        assert match.pending_block == first.block_ids[0]
    cache.commit(first, BLOCK)
    with cache.match(make_prompt(1, 2, [7])) as match:
        assert (match.num_cached_tokens, match.num_pending_tokens) == (BLOCK, BLOCK)
        assert match.pending_block == first.block_ids[1]
    cache.commit(first, 2 * BLOCK)
    with cache.match(make_prompt(1, 2, [7])) as match:
        assert match.pending_block is None


def test_free_owner_aborted_hands_the_uncomputed_blocks_over():
    cache = make_cache(8)
    owner = admit(cache, make_prompt(1, 2, 3, [9])).table
    cache.commit(owner, BLOCK)
    cache.free(owner)
    with cache.match(make_prompt(1, 2, 3, [7])) as match:
        assert (match.num_cached_tokens, match.num_pending_tokens) == (BLOCK, 0)


def test_commit_generated_blocks_become_matchable():
    cache = make_cache(8)
    table = admit(cache, make_prompt(1, [1, 2, 3]), max_new_tokens=20).table
    cache.commit(table, BLOCK + 3, [4])
    for token in range(5, 10):
        assert cache.grow(table, table.num_tokens + 1) == []
        cache.commit(table, table.num_tokens, [token])
    with cache.match(make_prompt(1, [1, 2, 3, 4, 5, 6, 7, 8, 99])) as match:
        assert match.num_cached_tokens == 2 * BLOCK


def test_free_twice_raises():
    cache = make_cache(4)
    table = admit(cache, make_prompt(1)).table
    cache.free(table)
    with pytest.raises(BlockStateError):
        cache.free(table)


def test_match_released_twice_is_harmless():
    cache = make_cache(4)
    serve(cache, make_prompt(1, 2))
    match = cache.match(make_prompt(1, 2, 3))
    match.release()
    match.release()
    cache.check_integrity()


def test_release_match_of_another_cache_raises_and_changes_nothing():
    cache, other = make_cache(4), make_cache(4)
    for each in (cache, other):
        serve(each, make_prompt(1, 2))
    match = other.match(make_prompt(1, 2, 3))
    with pytest.raises(BlockStateError):
        cache.release_match(match)
    assert match.is_open
    match.release()
    for each in (cache, other):
        each.check_integrity()


def test_match_owns_its_blocks_against_eviction():
    cache = make_cache(4)
    serve(cache, make_prompt(1, 2))
    match = cache.match(make_prompt(1, 2, 3))
    other = cache.match(make_prompt(5, 6, 7))
    assert cache.admit(other, max_new_tokens=0) is None
    match.release()
    assert cache.admit(other, max_new_tokens=0) is not None
    cache.check_integrity()


def test_grow_no_block_left_changes_nothing():
    cache = make_cache(2)
    table = compute(cache, admit(cache, make_prompt(1, 2), max_new_tokens=8).table)
    before = cache.snapshot()
    assert cache.grow(table, 2 * BLOCK + 1) is None
    assert cache.snapshot() == before
    cache.check_integrity()
