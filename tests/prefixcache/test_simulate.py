"""The replay agrees with what can be computed without the cache."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest

from prefixcache.simulate import replay


def make_trace(num_requests: int, seed: int) -> list[list[int]]:
    """Conversations that branch: each request goes on from a cut of an earlier one."""
    draw = random.Random(seed)
    trace: list[list[int]] = [[0]]
    fresh = 1
    for _ in range(num_requests - 1):
        start = draw.choice(trace[-40:])
        start = start[: draw.randint(0, len(start))]
        length = draw.randint(0 if start else 1, 6)
        trace.append([*start, *range(fresh, fresh + length)][:30])
        fresh += length
    return trace


def lru_hits(trace: list[list[int]], num_blocks: int) -> tuple[int, int]:
    """An independent model: ids are unique to their prefix, so a set of them is a tree."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = evicted = 0
    for ids in trace:
        if len(ids) > num_blocks:
            continue
        num_hits = next((i for i, block in enumerate(ids) if block not in cache), len(ids))
        hits += num_hits
        for block in ids[:num_hits]:
            cache.move_to_end(block)
        while len(cache) + len(ids) - num_hits > num_blocks:
            cache.popitem(last=False)
            evicted += 1
        for block in reversed(ids):  # the tail is the first to go
            cache[block] = None
            cache.move_to_end(block)
    return hits, evicted


def test_replay_unlimited_pool_reaches_the_theoretical_maximum():
    trace = make_trace(400, seed=1)
    seen: set[int] = set()
    possible = 0
    for ids in trace:
        possible += sum(block in seen for block in ids)
        seen.update(ids)
    result = replay(trace)
    assert result.hit_blocks == possible > 1000
    assert result.total_blocks == sum(map(len, trace))
    assert result.hit_rate == possible / result.total_blocks
    assert (result.evicted_blocks, result.share_cap_copies, result.refused_requests) == (0, 0, 0)


@pytest.mark.parametrize("num_blocks", [1, 7, 30, 31, 100, 400])
@pytest.mark.parametrize("seed", [2, 3])
def test_replay_limited_pool_equals_an_independent_lru(num_blocks, seed):
    trace = make_trace(400, seed)
    result = replay(trace, num_blocks=num_blocks)
    assert (result.hit_blocks, result.evicted_blocks) == lru_hits(trace, num_blocks)


def test_replay_same_id_behind_another_one_is_another_block():
    assert replay([[1, 2], [3, 2], [1, 2]]).hit_blocks == 2


def test_replay_large_ids_are_kept_apart():
    assert replay([[1], [1 + 2**32], [-1], [2**63 - 1]]).hit_blocks == 0


def test_replay_counts_requests_larger_than_the_pool_as_misses():
    result = replay([[1, 2, 3], [1, 2, 3]], num_blocks=2)
    assert (result.refused_requests, result.hit_blocks, result.total_blocks) == (2, 0, 6)


@pytest.mark.parametrize("policy", ["lru", "priority"])
def test_replay_enormous_pool_is_as_good_as_none(policy):
    trace = make_trace(50, seed=1)
    assert replay(trace, num_blocks=10**11, policy=policy) == replay(trace)


def test_replay_empty_trace_has_no_rate():
    assert replay([]).hit_rate is None
    assert replay([[]], num_blocks=4).hit_rate is None


def test_replay_policies_run_the_same_without_priorities():
    trace = make_trace(200, seed=4)
    assert replay(trace, num_blocks=40, policy="priority") == replay(trace, num_blocks=40)
