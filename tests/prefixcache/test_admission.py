"""A request is admitted when it fits beside what the running ones may still need, and all or nothing happens."""

from __future__ import annotations

import numpy as np
import pytest

from prefixcache import BlockStateError, CopyOp, PrefixCacheConfig
from prefixcache.admission import reserved_blocks
from tests.prefixcache.factories import BLOCK, admit, compute, make_cache, make_prompt, serve


@pytest.mark.parametrize(
    ("num_tokens", "max_new_tokens", "num_sequences", "growth_reserve", "expected"),
    [
        (16, 100, 1, 0, 0),  # switched off
        (16, 0, 1, 64, 0 + 1),
        (16, 8, 1, 64, 1 + 1),
        (16, 100, 1, 64, 8 + 1),
        (17, 7, 1, 64, 0 + 1),  # fits in the last prompt block
        (17, 8, 1, 64, 1 + 1),
        (17, 8, 3, 64, 1 + 2 * 2 + 1),  # each fork needs its own tail
        (16, 8, 3, 64, 1 + 2 * 1 + 1),
        (16, -16, 3, 64, 1),  # no room to grow: the copy block only
    ],
)
def test_reserved_blocks(num_tokens, max_new_tokens, num_sequences, growth_reserve, expected):
    config = PrefixCacheConfig(64, block_size=8, growth_reserve=growth_reserve)
    got = reserved_blocks(
        config,
        num_tokens=num_tokens,
        num_blocks=-(-num_tokens // 8),
        max_tokens=num_tokens + max_new_tokens,
        num_sequences=num_sequences,
    )
    assert got == expected


def admitted(cache, prompt, max_new_tokens=0, num_sequences=1, headroom=0) -> bool:
    with cache.match(prompt) as match:
        allocation = cache.admit(match, max_new_tokens=max_new_tokens, num_sequences=num_sequences, headroom=headroom)
    return allocation is not None


def test_admit_leaves_headroom_unless_nothing_runs():
    cache = make_cache(8)
    assert admitted(cache, make_prompt(1, 2), headroom=8)
    assert not admitted(cache, make_prompt(3, 4, 5, 6), headroom=3)
    assert admitted(cache, make_prompt(3, 4, 5, 6), headroom=2)


def test_forgo_forks_gives_their_reserve_back():
    cache = make_cache(9, growth_reserve=BLOCK)
    table = compute(cache, admit(cache, make_prompt(1), max_new_tokens=100, num_sequences=4).table)
    assert not admitted(cache, make_prompt(2, 3, 4))
    cache.forgo_forks(table)
    assert admitted(cache, make_prompt(2, 3, 4))


def test_admit_keeps_the_reserve_of_running_requests_free():
    cache = make_cache(8, growth_reserve=2 * BLOCK)
    compute(cache, admit(cache, make_prompt(1), max_new_tokens=100).table)
    # 7 free, the running one keeps 2 + 1; a prompt block and a copy block fit twice over, three prompt blocks do not.
    assert not admitted(cache, make_prompt(2, 3, 4, 5))
    assert admitted(cache, make_prompt(2, 3, 4))


def test_admit_counts_its_own_growth():
    cache = make_cache(8, growth_reserve=2 * BLOCK)
    compute(cache, admit(cache, make_prompt(1), max_new_tokens=100).table)
    assert not admitted(cache, make_prompt(2, 3), max_new_tokens=100)
    assert admitted(cache, make_prompt(2), max_new_tokens=100)


def test_admit_reserve_shrinks_as_a_request_nears_its_end():
    cache = make_cache(8, growth_reserve=4 * BLOCK)
    table = compute(cache, admit(cache, make_prompt(1), max_new_tokens=3 * BLOCK).table)
    assert not admitted(cache, make_prompt(2, 3, 4, [9]))
    cache.grow(table, 4 * BLOCK)  # 3 blocks taken of the pool and of the reserve: the same
    assert not admitted(cache, make_prompt(2, 3, 4, [9]))
    cache.free(table)
    assert admitted(cache, make_prompt(2, 3, 4, [9]))


def test_admit_several_sequences_reserve_for_each():
    cache = make_cache(9, growth_reserve=BLOCK)
    compute(cache, admit(cache, make_prompt(1), max_new_tokens=BLOCK).table)  # takes 1, keeps 2: 6 left
    assert not admitted(cache, make_prompt(2), max_new_tokens=BLOCK, num_sequences=5)  # 1 + 5 + 1
    assert admitted(cache, make_prompt(2), max_new_tokens=BLOCK, num_sequences=4)


def test_fork_takes_over_its_part_of_the_reserve():
    cache = make_cache(12, growth_reserve=BLOCK)
    table = compute(cache, admit(cache, make_prompt(1), max_new_tokens=BLOCK, num_sequences=2).table)
    assert table.num_sequences == 2
    cache.fork(table)
    assert table.num_sequences == 1


def test_admit_counts_only_blocks_that_can_be_evicted_now():
    cache = make_cache(4)
    serve(cache, make_prompt(1, 2))
    held = cache.match(make_prompt(1, 2, [9]))
    assert not admitted(cache, make_prompt(5, 6, 7))
    held.release()
    assert admitted(cache, make_prompt(5, 6, 7))


def test_admit_alone_may_take_the_whole_pool():
    cache = make_cache(4, growth_reserve=256)
    assert cache.max_request_tokens() == 4 * BLOCK
    table = compute(cache, admit(cache, make_prompt(1, 2, 3), max_new_tokens=BLOCK).table)
    assert cache.grow(table, 4 * BLOCK) == []


def test_admit_refused_changes_nothing_and_keeps_the_match():
    cache = make_cache(4)
    serve(cache, make_prompt(1))
    other = admit(cache, make_prompt(2, 3)).table
    match = cache.match(make_prompt(1, 4, 5))
    before = cache.snapshot()
    assert cache.admit(match, max_new_tokens=0) is None
    assert cache.snapshot() == before
    cache.free(other)
    allocation = cache.admit(match, max_new_tokens=0)
    assert allocation is not None
    assert allocation.num_cached_tokens == BLOCK
    cache.check_integrity()


def test_admit_failing_half_way_rolls_back(monkeypatch):
    cache = make_cache(8)
    serve(cache, make_prompt(1))
    match = cache.match(make_prompt(1, 2, 3, [9]))
    before = cache.snapshot()
    insert = cache._index.insert

    def fail_after(*args):
        assert insert(*args) == 2
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(cache._index, "insert", fail_after)
        with pytest.raises(MemoryError):
            cache.admit(match, max_new_tokens=0)
    assert cache.snapshot() == before
    cache.check_integrity()
    assert cache.admit(match, max_new_tokens=0) is not None
    cache.check_integrity()


@pytest.mark.parametrize(("name", "value"), [("max_new_tokens", -1), ("num_sequences", 0)])
def test_admit_nonsense_raises(name, value):
    cache = make_cache(8)
    with cache.match(make_prompt(1)) as match, pytest.raises(ValueError, match=name):
        cache.admit(match, **({"max_new_tokens": 0} | {name: value}))
    cache.check_integrity()


def test_grow_beyond_max_tokens_raises_and_changes_nothing():
    cache = make_cache(8)
    table = admit(cache, make_prompt(1), max_new_tokens=4).table
    before = cache.snapshot()
    with pytest.raises(BlockStateError, match="num_tokens"):
        cache.grow(table, BLOCK + 5)
    assert cache.snapshot() == before
    assert cache.grow(table, BLOCK + 4) == []


def test_commit_to_a_block_that_a_fork_came_to_share_raises_and_changes_nothing():
    cache = make_cache(8)
    table = admit(cache, make_prompt(1, [2, 2]), max_new_tokens=6).table
    cache.commit(table, BLOCK + 2)
    cache.grow(table, 2 * BLOCK)
    fork, _ = cache.fork(table)
    with pytest.raises(BlockStateError, match="shared"):
        cache.commit(table, 2 * BLOCK, [3] * 6)
    assert (table.num_computed_tokens, table.tokens.num_tokens) == (BLOCK + 2, BLOCK + 2)
    assert len(cache.grow(table, 2 * BLOCK)) == 1
    cache.commit(table, 2 * BLOCK, [3] * 6)
    cache.free(table)
    cache.check_integrity()
    assert cache.grow(fork, 2 * BLOCK) == []


def test_grow_never_lets_a_ready_block_be_written():
    cache = make_cache(8)
    table = admit(cache, make_prompt(1, 2)).table
    cache.commit(table, BLOCK + 2)
    cache._pool.mark_ready(table.block_ids[1:2])
    before = table.block_ids[1]
    assert cache.grow(table, 2 * BLOCK) == [CopyOp(before, table.block_ids[1], 2)]
    cache.check_integrity()


def test_admit_match_used_twice_raises():
    cache = make_cache(8)
    match = cache.match(make_prompt(1))
    cache.admit(match, max_new_tokens=0)
    with pytest.raises(BlockStateError):
        cache.admit(match, max_new_tokens=0)


@pytest.mark.parametrize("num_computed_tokens", [3, 17])
def test_commit_backwards_or_beyond_the_slots_raises(num_computed_tokens):
    cache = make_cache(8)
    table = admit(cache, make_prompt(1, 2)).table
    cache.commit(table, 8)
    with pytest.raises(BlockStateError, match="num_computed_tokens"):
        cache.commit(table, num_computed_tokens)


def test_commit_beyond_the_known_tokens_raises():
    cache = make_cache(8)
    table = admit(cache, make_prompt(1), max_new_tokens=8).table
    cache.grow(table, 10)
    cache.commit(table, 9, [1])
    with pytest.raises(BlockStateError, match="num_computed_tokens"):
        cache.commit(table, 10)


@pytest.mark.parametrize("token_ids", [[2**31], np.array([2**33 + 1])])
def test_commit_of_a_token_that_is_no_int32_raises_and_changes_nothing(token_ids):
    cache = make_cache(8)
    table = admit(cache, make_prompt(1), max_new_tokens=8).table
    with pytest.raises(ValueError, match="token_ids"):
        cache.commit(table, BLOCK, token_ids)
    assert (table.num_computed_tokens, table.tokens.num_tokens) == (0, BLOCK)
    cache.commit(table, BLOCK, np.array([5]))
    cache.check_integrity()


def test_commit_only_accepted_tokens_count():
    """Slots may hold KV of rejected drafts; a block is READY only by what was accepted."""
    cache = make_cache(8)
    table = admit(cache, make_prompt(1), max_new_tokens=8).table
    cache.grow(table, 16)
    cache.commit(table, 12, [1, 2, 3, 4])
    assert cache.snapshot().counters["copies"] == 0
    cache.free(table)
    assert cache.snapshot().cached_blocks == 1
