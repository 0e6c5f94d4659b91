"""Copy-on-write, forks, and the cap on how much of the pool is in common use."""

from __future__ import annotations

import pytest

from prefixcache import CopyOp, Reason
from tests.prefixcache.factories import BLOCK, admit, compute, make_cache, make_prompt, serve

TEXT = [1, 2, 3, 4, 5, 6, 7, 8]


def running(cache, *parts, max_new_tokens=16):
    return compute(cache, admit(cache, make_prompt(*parts), max_new_tokens=max_new_tokens).table)


def test_admit_beyond_the_cap_gets_private_copies():
    cache = make_cache(16, max_shared_ratio=1 / 16, max_pinned_ratio=0)
    owner = running(cache, 1, 2, 3, [9])
    allocation = admit(cache, make_prompt(1, 2, 3, [7]))
    table = allocation.table
    assert table.block_ids[0] == owner.block_ids[0]
    assert allocation.copies == [CopyOp(owner.block_ids[i], table.block_ids[i], BLOCK) for i in (1, 2)]
    assert allocation.num_cached_tokens == 3 * BLOCK
    assert allocation.reasons == {Reason.HIT: 1, Reason.SHARE_CAP: 2, Reason.NEVER_CACHED: 1}
    snapshot = cache.snapshot()
    assert (snapshot.shared_blocks, snapshot.shared_blocks_max) == (1, 1)
    assert snapshot.counters["share_cap_copies"] == 2
    assert snapshot.counters["copied_tokens"] == 2 * BLOCK


def test_reasons_come_in_the_order_of_the_blocks():
    cache = make_cache(16, max_shared_ratio=1 / 16, max_pinned_ratio=0, min_partial_tokens=3)
    owner = running(cache, 1, 2, [1, 2, 3, 4, 5, 6, 7, 8], [9])
    allocation = admit(cache, make_prompt(1, 2, [1, 2, 3, 4, 0, 0, 0, 0], 3))
    assert list(allocation.reasons) == [Reason.HIT, Reason.SHARE_CAP, Reason.COPIED, Reason.DIVERGED]
    assert [copy.src for copy in allocation.copies] == owner.block_ids[1:3]


def test_admit_unreferenced_blocks_need_no_room_under_the_cap():
    cache = make_cache(16, max_shared_ratio=0.0, max_pinned_ratio=0)
    serve(cache, make_prompt(1, 2, 3))
    allocation = admit(cache, make_prompt(1, 2, [9]))
    assert allocation.reasons[Reason.HIT] == 2
    assert cache.snapshot().shared_blocks == 0


def test_admit_third_sharer_needs_no_more_room():
    cache = make_cache(16, max_shared_ratio=2 / 16, max_pinned_ratio=0)
    tables = [running(cache, 1, 2, [n]) for n in (1, 2, 3)]
    assert len({tuple(table.block_ids[:2]) for table in tables}) == 1
    assert cache.snapshot().shared_blocks == 2


def test_admit_pinned_blocks_are_shared_already():
    cache = make_cache(16, max_shared_ratio=2 / 16, max_pinned_ratio=2 / 16)
    serve(cache, make_prompt(1, 2, [9]))
    cache.pin(make_prompt(1, 2))
    idle = cache.snapshot()
    assert (idle.shared_blocks, idle.active_shared_blocks, idle.active_private_blocks) == (2, 0, 0)
    for tail in (1, 2, 3):
        assert admit(cache, make_prompt(1, 2, [tail])).copies == []
        assert cache.snapshot().active_shared_blocks == 2
    assert cache.snapshot().active_private_blocks == 3
    assert cache.snapshot().shared_blocks == 2


def test_waiter_woken_by_single_flight_asks_the_cap():
    cache = make_cache(16, max_shared_ratio=0.0, max_pinned_ratio=0)
    owner = admit(cache, make_prompt(1, 2, [9])).table
    with cache.match(make_prompt(1, 2, [7])) as match:
        assert match.num_pending_tokens == 2 * BLOCK
    compute(cache, owner)
    assert admit(cache, make_prompt(1, 2, [7])).reasons[Reason.SHARE_CAP] == 2


def test_set_max_shared_ratio_lower_stops_new_sharing_and_drains():
    cache = make_cache(16)
    tables = [running(cache, 1, 2, [n]) for n in (1, 2)]
    cache.set_max_shared_ratio(0.0)
    assert cache.snapshot().shared_blocks == 2
    assert admit(cache, make_prompt(1, 2, [3])).copies == []  # in use by two already: sharing grows by no block
    cache.free(tables[0])
    cache.free(tables[1])
    assert cache.snapshot().shared_blocks == 0
    assert len(admit(cache, make_prompt(1, 2, [4])).copies) == 2


@pytest.mark.parametrize("ratio", [-0.1, 1.1])
def test_set_max_shared_ratio_out_of_range_raises(ratio):
    with pytest.raises(ValueError, match="max_shared_ratio"):
        make_cache().set_max_shared_ratio(ratio)


def test_blocks_behind_a_capped_prefix_are_cached_when_the_request_ends():
    cache = make_cache(16, max_shared_ratio=0.0, max_pinned_ratio=0)
    owner = running(cache, 1, [9])
    capped = running(cache, 1, 2, [9])
    cache.free(capped)
    cache.check_integrity()
    with cache.match(make_prompt(1, 2, [7])) as match:
        assert match.num_cached_tokens == 2 * BLOCK
    cache.free(owner)
    cache.check_integrity()


def test_copy_stands_in_for_an_original_that_was_evicted():
    cache = make_cache(6, max_shared_ratio=0.0, max_pinned_ratio=0)
    owner = running(cache, 1, [9])
    capped = running(cache, 1, 2, [9])
    cache.free(owner)
    serve(cache, make_prompt(5, 6, 7))  # evicts the original
    cache.free(capped)
    cache.check_integrity()
    with cache.match(make_prompt(1, 2, [7])) as match:
        assert match.num_cached_tokens == 2 * BLOCK


def test_two_requests_computing_the_same_end_as_one_chain():
    cache = make_cache(16)
    first = admit(cache, make_prompt(1, 2, [9])).table
    second = admit(cache, make_prompt(1, 2, 3, [9]))
    assert second.reasons == {Reason.NOT_READY: 2, Reason.NEVER_CACHED: 2}
    compute(cache, second.table)
    cache.free(second.table)
    cache.check_integrity()
    assert cache.snapshot().cached_blocks == 0  # the owner is not ready: nothing to put the third block behind
    cache.free(compute(cache, first))
    cache.check_integrity()
    assert cache.snapshot().cached_blocks == 2


def test_fork_shares_all_and_the_first_write_copies_the_tail():
    cache = make_cache(16)
    table = running(cache, 1, [1, 2, 3])
    fork, copies = cache.fork(table)
    assert copies == []
    assert fork.block_ids == table.block_ids
    before = table.block_ids[1]
    assert cache.grow(fork, BLOCK + 4) == [CopyOp(before, fork.block_ids[1], 3)]
    assert cache.grow(table, BLOCK + 4) == []  # alone again
    assert table.block_ids[1] == before != fork.block_ids[1]
    cache.check_integrity()


def test_fork_full_tail_needs_no_copy():
    cache = make_cache(16)
    table = running(cache, 1, 2)
    fork, _ = cache.fork(table)
    assert cache.grow(fork, 2 * BLOCK + 1) == []
    assert fork.block_ids[:2] == table.block_ids[:2]


def test_fork_beyond_the_cap_copies_at_once():
    cache = make_cache(16, max_shared_ratio=1 / 16, max_pinned_ratio=0)
    table = running(cache, 1, 2, [1, 2, 3])
    fork, copies = cache.fork(table)
    expected = [(table.block_ids[1], fork.block_ids[1], BLOCK), (table.block_ids[2], fork.block_ids[2], 3)]
    assert [(copy.src, copy.dst, copy.num_tokens) for copy in copies] == expected
    cache.check_integrity()
    for table_ in (fork, table):
        cache.free(table_)
        cache.check_integrity()


def test_fork_no_room_for_copies_returns_none():
    cache = make_cache(3, max_shared_ratio=0.0, max_pinned_ratio=0)
    table = running(cache, 1, 2)
    before = cache.snapshot()
    assert cache.fork(table) is None
    assert cache.snapshot() == before


def test_fork_of_a_half_computed_prompt_inherits_what_is_computed():
    cache = make_cache(16)
    table = admit(cache, make_prompt(1, 2, 3), max_new_tokens=8).table
    cache.commit(table, BLOCK + 4)
    fork, _ = cache.fork(table)
    assert (fork.num_tokens, fork.block_ids) == (BLOCK + 4, table.block_ids[:2])
    assert cache.grow(table, 3 * BLOCK) == [CopyOp(fork.block_ids[1], table.block_ids[1], 4)]
    cache.check_integrity()
    assert cache.grow(fork, 3 * BLOCK) == []
    cache.free(compute(cache, fork))
    cache.check_integrity()
    cache.free(compute(cache, table))
    cache.check_integrity()
    with cache.match(make_prompt(1, 2, 3, [9])) as match:
        assert match.num_cached_tokens == 3 * BLOCK


def test_forks_diverge_and_both_are_cached():
    cache = make_cache(16)
    table = running(cache, 1, [1, 2, 3])
    fork, _ = cache.fork(table)
    for sequence, first in ((table, 50), (fork, 60)):
        for token in range(first, first + 5):
            cache.commit(sequence, sequence.num_tokens, [token])
            assert cache.grow(sequence, sequence.num_tokens + 1) is not None
        cache.commit(sequence, 2 * BLOCK)
        cache.check_integrity()
        with cache.match(make_prompt(1, [1, 2, 3, *range(first, first + 5)], [9])) as match:
            assert match.num_cached_tokens == 2 * BLOCK


@pytest.mark.parametrize("order", [1, -1])
def test_partial_match_copies_the_longest_common_start(order):
    cache = make_cache(16, min_partial_tokens=3)
    for text in ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 0, 0, 0, 0])[::order]:
        serve(cache, make_prompt(1, text, [9]))
    allocation = admit(cache, make_prompt(1, [1, 2, 3, 4, 5, 0, 0, 0], [9]))
    assert allocation.num_cached_tokens == BLOCK + 5
    assert [copy.num_tokens for copy in allocation.copies] == [5]
    assert allocation.reasons == {Reason.HIT: 1, Reason.COPIED: 1, Reason.DIVERGED: 1}


def test_partial_source_gives_way_when_it_is_the_block_that_is_missing():
    cache = make_cache(4, min_partial_tokens=3)
    serve(cache, make_prompt([1, 2, 3, 4, 5, 6, 7, 8]))
    allocation = admit(cache, make_prompt([1, 2, 3, 4, 0, 0, 0, 0], 2, 3, 4))
    assert allocation.num_cached_tokens == 0
    assert allocation.copies == []
    assert allocation.reasons == {Reason.BELOW_MIN_REUSE: 1, Reason.NEVER_CACHED: 3}


def test_admit_refused_keeps_the_partial_source():
    cache = make_cache(5, min_partial_tokens=3)
    serve(cache, make_prompt(TEXT))
    running(cache, 5, 6, 7, max_new_tokens=0)
    with cache.match(make_prompt([1, 2, 3, 4, 0, 0, 0, 0], 2, 3)) as match:
        assert cache.admit(match, max_new_tokens=0) is None  # two blocks are missing: the source alone does not help
        assert match.num_cached_tokens == 4
    cache.check_integrity()


def test_admit_keeps_the_partial_source_that_another_match_holds():
    cache = make_cache(4, min_partial_tokens=3)
    serve(cache, make_prompt(TEXT))
    other = cache.match(make_prompt(TEXT, [9]))
    with cache.match(make_prompt([1, 2, 3, 4, 0, 0, 0, 0], 2, 3, 4)) as match:
        assert cache.admit(match, max_new_tokens=0) is None
        assert match.num_cached_tokens == 4
    other.release()
    cache.check_integrity()


def test_admit_keeps_the_partial_source_that_a_running_request_holds():
    cache = make_cache(4, min_partial_tokens=3)
    running(cache, TEXT)
    with cache.match(make_prompt([1, 2, 3, 4, 0, 0, 0, 0], 2, 3, 4)) as match:
        assert cache.admit(match, max_new_tokens=0) is None
        assert match.num_cached_tokens == 4
    cache.check_integrity()


def test_private_block_that_a_fork_shares_is_not_cached_before_the_fork_ends():
    """Else the fork would hold a cached block without holding its parent, which could be evicted first."""
    cache = make_cache(16)
    owner = admit(cache, make_prompt(1, [9])).table
    table = compute(cache, admit(cache, make_prompt(1, 2, [7])).table)
    fork, _ = cache.fork(table)
    compute(cache, owner)
    for ended, num_cached in ((table, 0), (owner, 1), (fork, 2)):
        cache.free(ended)
        cache.check_integrity()
        assert cache.snapshot().cached_blocks == num_cached


def test_fork_with_copies_outlives_the_originals():
    cache = make_cache(5, max_shared_ratio=0.0, max_pinned_ratio=0)
    table = running(cache, 1, [1, 2, 3])
    fork, copies = cache.fork(table)
    assert len(copies) == 2
    cache.free(table)
    serve(cache, make_prompt(5, 6, 7))  # evicts the original of the first block
    cache.commit(fork, fork.num_tokens, [4, 5, 6, 7, 8, 9])
    assert cache.grow(fork, 2 * BLOCK) == []
    cache.commit(fork, 2 * BLOCK)
    cache.check_integrity()
    cache.free(fork)
    cache.check_integrity()
    with cache.match(make_prompt(1, [1, 2, 3, 4, 5, 6, 7, 8], [9])) as match:
        assert match.num_cached_tokens == 2 * BLOCK
