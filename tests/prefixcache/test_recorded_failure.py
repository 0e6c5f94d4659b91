"""A failure seen elsewhere: 32 sharers of a 59-block prefix in a 96-block pool, all admitted, then every decode stalled."""

from __future__ import annotations

import pytest

from prefixcache import CacheSnapshot, PrefixCache, PrefixCacheConfig
from tests.prefixcache.fake_scheduler import FakeScheduler, Outcome, Request, answer

BLOCK = 8
NUM_BLOCKS = 96
NUM_SHARERS = 32
PREFIX = [n % 997 for n in range(59 * BLOCK)]
NUM_NEW_TOKENS = 6 * BLOCK
MAX_STEPS = 20_000


def sharers() -> list[Request]:
    prompts = [[*PREFIX, 1000 + number, 7, 7] for number in range(NUM_SHARERS)]
    return [Request(prompt, len(prompt) + NUM_NEW_TOKENS) for prompt in prompts]


def serve(max_shared_ratio: float, growth_reserve: int, *, check_kv: bool = True) -> tuple[Outcome, CacheSnapshot]:
    config = PrefixCacheConfig(
        NUM_BLOCKS,
        block_size=BLOCK,
        max_shared_ratio=max_shared_ratio,
        max_pinned_ratio=0.0,
        growth_reserve=growth_reserve,
    )
    cache = PrefixCache(config)
    outcome = FakeScheduler(cache, sharers(), check_kv=check_kv).run(MAX_STEPS)
    cache.check_integrity()
    snapshot = cache.snapshot()
    assert snapshot.active_blocks == 0
    assert snapshot.shared_blocks_max <= max_shared_ratio * NUM_BLOCKS
    return outcome, snapshot


@pytest.mark.parametrize("max_shared_ratio", [0.25, 0.5, 0.75, 1.0])
def test_sharers_finish_whole_and_never_stall_with_the_reserve(max_shared_ratio):
    outcome, _ = serve(max_shared_ratio, growth_reserve=256)
    assert outcome.answers == [answer(request.tokens, NUM_NEW_TOKENS) for request in sharers()]
    assert outcome.preemptions == outcome.stalls == 0


@pytest.mark.parametrize("max_shared_ratio", [0.25, 0.5, 0.75, 1.0])
def test_sharers_finish_whole_without_the_reserve_but_preempt_each_other(max_shared_ratio):
    outcome, _ = serve(max_shared_ratio, growth_reserve=0)
    assert outcome.answers == [answer(request.tokens, NUM_NEW_TOKENS) for request in sharers()]
    assert outcome.preemptions > 0


def test_a_higher_cap_lets_more_sharers_run_at_once():
    running = [serve(ratio, growth_reserve=256, check_kv=False)[0].max_running for ratio in (0.25, 0.5, 0.75, 1.0)]
    assert running == sorted(running)
    assert running[0] < running[-1]
