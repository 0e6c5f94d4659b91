"""The estimate of one upstream's cache, and what reports do to it."""

from __future__ import annotations

from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.control import HashedPrompt
from gateway.upstream.estimate import EstimatedCache, corrected
from prefixcache.hashing import namespace
from prefixcache.interface import PrefixCacheConfig, Reason

BLOCK = 8
SPACE = namespace({}, scope="public")
PIECES = [[1] * 11, [2] * 13, [1, 2, 1, 2, 1], [3] * BLOCK]
texts = st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map(lambda pieces: [*chain.from_iterable(pieces)])


def cache_of(num_blocks: int = 64) -> EstimatedCache:
    config = PrefixCacheConfig(
        num_blocks, block_size=BLOCK, max_shared_ratio=1.0, growth_reserve=0, reuse_partial_blocks=False
    )
    return EstimatedCache(config)


def hashed(tokens: list[int]) -> HashedPrompt:
    return HashedPrompt(token_ids=np.array(tokens, dtype=np.int32), block_hashes=b"", scopes=[(SPACE, 0)], hash_epoch=0)


@given(st.lists(st.tuples(texts, st.none() | st.integers(0, 70)), min_size=1, max_size=20), st.integers(9, 40))
def test_after_a_report_no_more_is_predicted_than_it_told_until_the_prompt_comes_again(
    answers: list[tuple[list[int], int | None]], num_blocks: int
) -> None:
    cache = cache_of(num_blocks)
    for number, (tokens, reported) in enumerate(answers):
        prompt = hashed(tokens)
        prediction = cache.predict(prompt)
        assert prediction.num_tokens % BLOCK == 0
        assert prediction.num_tokens < len(tokens)
        if reported is not None:
            others = [cache.predict(hashed(other)).num_tokens for other, _ in answers]
            cache.correct(prediction, reported)
            assert cache.predict(prompt).num_tokens <= reported
            after = [cache.predict(hashed(other)).num_tokens for other, _ in answers]
            assert all(now <= before for now, before in zip(after, others, strict=True))
        cache.learn(prediction, str(number), None, None)
        assert cache.predict(prompt).num_tokens == (len(tokens) - 1) // BLOCK * BLOCK
        assert cache.num_blocks <= num_blocks


def test_sums_are_those_of_answers_that_told() -> None:
    cache, prompt = cache_of(), hashed([1] * 40)
    cache.learn(cache.predict(prompt), "a", None, 40)
    cache.learn(cache.predict(prompt), "b", 8, 41)
    sums = cache.sums
    assert (sums.requests, sums.predicted_tokens, sums.reported_tokens, sums.corrections) == (1, 32, 8, 1)
    assert (sums.rendered_tokens, sums.prompt_tokens) == (40, 41)


def test_a_report_corrects_the_reason_too() -> None:
    cache = cache_of()
    head = [1] * 32
    cache.learn(cache.predict(hashed([*head, *[2] * 32])), "first", None, None)
    other = cache.predict(hashed([*head, *[3] * 32])).explanation
    assert (other.reason, other.num_cached_tokens, cache.owner(other)) == (Reason.DIVERGED, 32, "first")
    assert corrected(other, None, BLOCK).reason is Reason.DIVERGED
    assert corrected(other, 8, BLOCK).reason is Reason.EVICTED
    assert corrected(other, 63, BLOCK).reason is Reason.HIT
    assert corrected(other, 40, BLOCK).num_cached_tokens == 40
