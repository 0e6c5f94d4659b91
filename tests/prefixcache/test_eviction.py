"""Which block goes, exactly, and which never does."""

from __future__ import annotations

import random

import pytest

from prefixcache import BlockStateError, PinRefusal
from prefixcache.queue import EvictionQueue
from tests.prefixcache.factories import BLOCK, admit, compute, make_cache, make_prompt, serve


def eviction_order(cache) -> list[int]:
    return list(cache._pool.queue)


def test_eviction_is_leaf_first_and_least_recent_first():
    cache = make_cache(6)
    first = serve(cache, make_prompt(1, 2, 3)).table.block_ids
    second = serve(cache, make_prompt(1, 4, [9])).table.block_ids
    assert (first, second) == ([0, 1, 2], [0, 3, 4])
    assert eviction_order(cache) == [2, 1, 3, 0]  # the second request made the root recent again


def test_allocate_evicts_in_that_order():
    cache = make_cache(4)
    serve(cache, make_prompt(1, 2, 3, 4))
    assert eviction_order(cache) == [3, 2, 1, 0]
    assert admit(cache, make_prompt(5, 6)).table.block_ids == [3, 2]
    assert cache.snapshot().counters["evicted_blocks"] == 2
    with cache.match(make_prompt(1, 2, [9])) as match:
        assert match.num_cached_tokens == 2 * BLOCK


def test_free_block_is_taken_before_any_eviction():
    cache = make_cache(4)
    serve(cache, make_prompt(1, 2))
    admit(cache, make_prompt(3, 4))
    assert cache.snapshot().counters["evicted_blocks"] == 0


def test_release_of_a_match_makes_its_blocks_recent():
    cache = make_cache(4)
    serve(cache, make_prompt(1, [9]))
    serve(cache, make_prompt(2, [9]))
    assert eviction_order(cache) == [0, 1]
    cache.match(make_prompt(1, [7])).release()
    assert eviction_order(cache) == [1, 0]


def test_priority_evicts_lower_levels_first_and_ancestors_inherit():
    cache = make_cache(6, policy="priority")
    serve(cache, make_prompt(1, 2, [9]))
    cache.prioritize(make_prompt(1, 2), level=2)
    cache.check_integrity()
    serve(cache, make_prompt(1, 3, [9]))
    serve(cache, make_prompt(4, [9]))
    assert eviction_order(cache) == [2, 3, 1, 0]


def test_priority_expires_at_the_callers_time():
    cache = make_cache(6, policy="priority")
    serve(cache, make_prompt(1, [9]))
    serve(cache, make_prompt(2, [9]))
    cache.prioritize(make_prompt(1), level=2, expires_at=10.0)
    assert eviction_order(cache) == [1, 0]
    cache.expire(9.9)
    serve(cache, make_prompt(2, [9]))
    assert eviction_order(cache) == [1, 0]
    cache.expire(10.0)
    serve(cache, make_prompt(2, [9]))
    assert eviction_order(cache) == [0, 1]


@pytest.mark.parametrize("policy", ["lru", "priority"])
def test_priority_that_ends_leaves_recency_untouched(policy):
    cache = make_cache(10, policy=policy)
    for number in range(1, 6):
        serve(cache, make_prompt(number, [9]))
    cache.prioritize(make_prompt(5), level=3)
    before = eviction_order(cache)
    for number in (3, 1, 2, 4):
        cache.prioritize(make_prompt(number), level=number, expires_at=1.0)
        cache.check_integrity()
    if policy == "lru":
        assert eviction_order(cache) == before
    cache.expire(1.0)
    assert eviction_order(cache) == before
    cache.check_integrity()


def test_priority_of_one_level_goes_by_recency_and_not_by_the_order_of_claims():
    cache = make_cache(10, policy="priority")
    for number in (1, 2, 3):
        serve(cache, make_prompt(number, [9]))
    cache.prioritize(make_prompt(3), level=1)
    cache.prioritize(make_prompt(1), level=1)
    serve(cache, make_prompt(4, [9]))
    assert eviction_order(cache) == [1, 3, 0, 2]
    serve(cache, make_prompt(1, [9]))
    assert eviction_order(cache) == [1, 3, 2, 0]


def test_queue_order_is_rank_then_recency():
    draw = random.Random(0)
    queue, ranks, recency = EvictionQueue(30), {}, []
    for _ in range(2000):
        blocks = draw.sample(range(30), draw.randint(1, 6))
        match draw.randint(0, 2):
            case 0:
                blocks = [block for block in blocks if block not in recency]
                queue.extend(blocks)
                recency += blocks
            case 1:
                blocks = [block for block in blocks if block in recency]
                queue.remove(blocks)
                recency = [block for block in recency if block not in blocks]
            case _:
                changes = {block: draw.randint(0, 3) for block in blocks if draw.random() < 0.5}
                queue.change_ranks(changes)
                ranks |= changes
        expected = sorted(recency, key=lambda block: ranks.get(block, 0))
        assert list(queue) == expected
        assert queue.first(3) == expected[:3]
        if draw.random() < 0.05:
            queue.change_ranks(dict.fromkeys(ranks, 0))
            ranks.clear()


def test_priority_levels_that_nobody_uses_leave_nothing_behind():
    cache = make_cache(8, policy="priority")
    serve(cache, make_prompt(1, 2, [9]))
    for level in range(1, 200):
        cache.end_priority(cache.prioritize(make_prompt(1), level=level))
    assert len(cache._pool.queue._sentinels) <= 2
    assert eviction_order(cache) == [1, 0]


def test_priority_given_back_twice_is_harmless():
    cache = make_cache(6, policy="priority")
    serve(cache, make_prompt(1, [9]))
    priority = cache.prioritize(make_prompt(1), level=2)
    cache.end_priority(priority)
    cache.end_priority(priority)
    assert cache._pool.ranks == {}


def test_priority_highest_of_several_counts():
    cache = make_cache(8, policy="priority")
    serve(cache, make_prompt(1, 2, [9]))
    serve(cache, make_prompt(3, [9]))
    low = cache.prioritize(make_prompt(3), level=2)
    high = cache.prioritize(make_prompt(1), level=3)
    cache.prioritize(make_prompt(1, 2), level=1)
    assert eviction_order(cache) == [1, 2, 0]
    cache.end_priority(high)
    assert eviction_order(cache) == [1, 0, 2]
    cache.end_priority(low)
    assert eviction_order(cache) == [2, 1, 0]
    cache.check_integrity()


def test_priority_does_not_follow_a_recycled_block():
    cache = make_cache(2, policy="priority")
    serve(cache, make_prompt(1, [9]))
    cache.prioritize(make_prompt(1), level=2, expires_at=1.0)
    serve(cache, make_prompt(2, 3))
    assert cache._pool.ranks == {}
    cache.expire(1.0)
    cache.check_integrity()


def test_priority_below_one_raises():
    cache = make_cache(2, policy="priority")
    with pytest.raises(ValueError, match="level"):
        cache.prioritize(make_prompt(1), level=0)


def test_lru_does_not_look_at_priorities():
    cache = make_cache(4, policy="lru")
    serve(cache, make_prompt(1, [9]))
    serve(cache, make_prompt(2, [9]))
    cache.prioritize(make_prompt(2), level=5)
    serve(cache, make_prompt(1, [9]))
    assert eviction_order(cache) == [1, 0]


def test_pin_keeps_a_chain_from_eviction():
    cache = make_cache(4, max_pinned_ratio=0.5)
    serve(cache, make_prompt(1, 2, [9]))
    result = cache.pin(make_prompt(1, 2))
    assert (result.num_blocks, result.refusal) == (2, None)
    cache.check_integrity()
    with cache.match(make_prompt(5, 6, 7)) as match:
        assert cache.admit(match, max_new_tokens=0) is None
    assert cache.max_request_tokens() == 2 * BLOCK
    serve(cache, make_prompt(5, 6))
    with cache.match(make_prompt(1, 2, [9])) as match:
        assert match.num_cached_tokens == 2 * BLOCK
    assert result.pin is not None
    cache.unpin(result.pin)
    cache.check_integrity()
    serve(cache, make_prompt(5, 6, 7, 8))
    snapshot = cache.snapshot()
    assert (snapshot.pinned_blocks, snapshot.pinned_blocks_max, snapshot.shared_blocks) == (0, 2, 0)


def test_pin_beyond_its_budget_is_refused():
    cache = make_cache(8, max_pinned_ratio=0.25)
    serve(cache, make_prompt(1, 2, 3))
    refused = cache.pin(make_prompt(1, 2, 3))
    assert (refused.pin, refused.refusal, refused.num_blocks) == (None, PinRefusal.PINNED_RATIO, 3)
    assert cache.snapshot().pinned_blocks == 0
    assert cache.pin(make_prompt(1, 2)).refusal is None
    assert cache.pin(make_prompt(1)).refusal is None  # its block is pinned already
    cache.check_integrity()


def test_pin_beyond_the_sharing_cap_is_refused():
    cache = make_cache(8, max_shared_ratio=0.5, max_pinned_ratio=0.5)
    serve(cache, make_prompt(1, 2, 3))
    cache.set_max_shared_ratio(0.25)
    assert cache.pin(make_prompt(1, 2, 3)).refusal is PinRefusal.SHARED_RATIO
    assert cache.pin(make_prompt(1, 2)).refusal is None


def test_pin_that_would_stop_a_running_request_is_refused():
    cache = make_cache(8, max_pinned_ratio=0.5)
    serve(cache, make_prompt(1, 2, 3, 4))
    serve(cache, make_prompt(7))
    table = compute(cache, admit(cache, make_prompt(5, 6), max_new_tokens=4 * BLOCK).table)  # 6 blocks at its end
    assert cache.pin(make_prompt(1, 2, 3)).refusal is PinRefusal.RUNNING_REQUEST
    assert cache.pin(make_prompt(1, 2)).refusal is None
    assert cache.pin(make_prompt(7)).refusal is PinRefusal.RUNNING_REQUEST
    assert cache.pin(make_prompt(5)).refusal is None  # its own block takes nothing from it
    cache.check_integrity()
    assert cache.grow(table, table.max_tokens) == []
    cache.free(table)
    assert cache.pin(make_prompt(1, 2, 3)).refusal is None


def test_pin_asks_for_every_running_request_not_only_the_oldest():
    cache = make_cache(8, max_pinned_ratio=0.5)
    serve(cache, make_prompt(1))
    admit(cache, make_prompt(5))
    admit(cache, make_prompt(6), max_new_tokens=7 * BLOCK)  # may become the oldest
    assert cache.pin(make_prompt(1)).refusal is PinRefusal.RUNNING_REQUEST


def test_pin_uncached_prompt_is_refused():
    cache = make_cache(8)
    admit(cache, make_prompt(1))  # PENDING is not cached
    assert cache.pin(make_prompt(1)).refusal is PinRefusal.NOT_CACHED


def test_unpin_twice_raises():
    cache = make_cache(8)
    serve(cache, make_prompt(1))
    pin = cache.pin(make_prompt(1)).pin
    assert pin is not None
    cache.unpin(pin)
    with pytest.raises(BlockStateError):
        cache.unpin(pin)


def test_pin_of_a_running_chain_counts_each_block_once():
    cache = make_cache(8, max_pinned_ratio=1.0)
    table = compute(cache, admit(cache, make_prompt(1, 2)).table)
    one, two = cache.pin(make_prompt(1)).pin, cache.pin(make_prompt(1, 2)).pin
    assert one is not None
    assert two is not None
    assert cache.snapshot().shared_blocks == 2
    cache.free(table)
    cache.unpin(two)
    assert cache.snapshot().shared_blocks == 1
    cache.check_integrity()
    assert eviction_order(cache) == [1]
