"""A shadow says what the real cache says, without being sent a request."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixcache import PrefixCache, PrefixCacheConfig, Prompt, Scope
from prefixcache.shadow import ShadowIndex, is_sampled, scaled_pool
from tests.prefixcache.factories import BLOCK, PUBLIC, TENANT_A, TENANT_B, make_prompt

SCOPES = [(Scope(TENANT_A, 0),), (Scope(TENANT_B, 0),), (Scope(PUBLIC, 1), Scope(TENANT_A, 0))]
# Few different pieces, none of a block's size, so that prompts branch at every offset and blocks overlap in part.
PIECES = [[1] * 11, [1] * 3, [2] * 13, [1, 2, 1, 2, 1], [3] * BLOCK]
texts = st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map(lambda pieces: [*chain.from_iterable(pieces)])
answers = st.lists(st.sampled_from(PIECES), max_size=2).map(lambda pieces: [*chain.from_iterable(pieces)])


def config_of(num_blocks: int, **changes) -> PrefixCacheConfig:
    return PrefixCacheConfig(num_blocks, block_size=BLOCK, min_partial_tokens=3, growth_reserve=0, **changes)


def serve_live(cache: PrefixCache, prompt: Prompt, answer: list[int]) -> int | None:
    """Run a request as the scheduler does: prefill in one step, then a token a step; the last one is not computed."""
    with cache.match(prompt) as match:
        allocation = cache.admit(match, max_new_tokens=len(answer))
    if allocation is None:
        return None
    table = allocation.table
    known = len(prompt.token_ids)
    cache.commit(table, known, answer[:1])
    for position in range(1, len(answer)):
        assert cache.grow(table, known + position) is not None
        cache.commit(table, known + position, answer[position : position + 1])
    cache.free(table)
    cache.check_integrity()
    return allocation.num_cached_tokens


@settings(max_examples=300)
@given(
    st.lists(st.tuples(texts, answers, st.sampled_from(SCOPES)), min_size=1, max_size=25),
    st.integers(6, 30),
    st.booleans(),
)
def test_shadow_hits_what_the_real_cache_hits(requests, num_blocks, reuse_partial_blocks):
    config = config_of(num_blocks, reuse_partial_blocks=reuse_partial_blocks)
    live, shadow = PrefixCache(config), ShadowIndex[str](config)
    for tokens, answer, scopes in requests:
        prompt = make_prompt(tokens, scopes=scopes)
        is_too_long = len(tokens) + len(answer) > num_blocks * BLOCK
        takes_a_block_more = answer and len(tokens) % BLOCK == 0  # see `extend`
        if is_too_long or takes_a_block_more:
            continue
        hit = shadow.serve(prompt, "")
        assert hit is not None
        assert hit.num_cached_tokens == serve_live(live, prompt, answer)
        shadow.extend(prompt, answer[:-1], "")
        shadow.check_integrity()


def test_shadow_prompt_larger_than_the_pool_is_no_data_and_changes_nothing():
    shadow = ShadowIndex[str](config_of(3))
    assert shadow.serve(make_prompt(1, 2), "") is not None
    assert shadow.serve(make_prompt(1, 2, 3, 4), "") is None
    hit = shadow.serve(make_prompt(1, 2), "")
    assert hit is not None
    assert hit.num_cached_tokens == 2 * BLOCK - 1


def test_shadow_answer_larger_than_the_pool_is_left_out():
    shadow = ShadowIndex[str](config_of(2))
    shadow.serve(make_prompt(1, [5]), "")
    shadow.extend(make_prompt(1, [5]), [5] * 2 * BLOCK, "")
    hit = shadow.serve(make_prompt(1, [6]), "")
    assert hit is not None
    assert hit.num_cached_tokens == BLOCK


def test_shadow_memory_is_bounded_by_its_pool():
    shadow = ShadowIndex[str](config_of(16))
    for number in range(300):
        prompt = make_prompt(number, number + 1000, [7] * 5)
        shadow.serve(prompt, str(number))
        shadow.extend(prompt, [number] * 20, str(number))
        assert len(shadow._index.by_key) <= 16
        assert len(shadow._marks) <= 16
        assert not shadow._tables
        assert not shadow._matches


def mark_met(shadow: ShadowIndex[str], prompt: Prompt, own: str) -> str | None:
    hit = shadow.serve(prompt, own)
    assert hit is not None
    return hit.mark


def test_mark_is_that_of_the_prompt_that_brought_the_last_reused_block():
    shadow = ShadowIndex[str](config_of(16))
    assert mark_met(shadow, make_prompt(1, 2, [3]), "first") is None
    assert mark_met(shadow, make_prompt(1, 2, 5, 6, [3]), "second") == "first"
    assert mark_met(shadow, make_prompt(1, 2, 5, [3]), "third") == "second"
    assert mark_met(shadow, make_prompt(1, 2, [3]), "fourth") == "first"


def test_mark_is_that_of_the_prompt_whose_block_is_reused_in_part():
    shadow = ShadowIndex[str](config_of(16))
    mark_met(shadow, make_prompt(1, [1, 2, 3, 4, 5, 6, 7, 8]), "first")
    mark_met(shadow, make_prompt(1, [5] * 8), "second")
    assert mark_met(shadow, make_prompt(1, [1, 2, 3, 4, 0, 0]), "third") == "first"


def test_mark_of_an_answer_is_its_prompts():
    shadow = ShadowIndex[str](config_of(16))
    mark_met(shadow, make_prompt(1, [3]), "first")
    shadow.extend(make_prompt(1, [3]), [3] * 9, "first")
    assert mark_met(shadow, make_prompt(1, [3] * 10, [4]), "second") == "first"


def test_mark_goes_with_its_block():
    shadow = ShadowIndex[str](config_of(3))
    mark_met(shadow, make_prompt(1, 2), "first")
    mark_met(shadow, make_prompt(3, 4, 5), "second")
    assert mark_met(shadow, make_prompt(3, 4, [6]), "third") == "second"


@given(st.lists(st.integers(0, 99), min_size=1, max_size=40), st.lists(st.integers(0, 99), max_size=40), st.text())
def test_family_is_wholly_in_or_out(tokens, more, tenant):
    first = np.array((tokens * BLOCK)[:BLOCK], dtype=np.int32)
    family = [np.array([*first, *tail], dtype=np.int32) for tail in ([], more, tokens)]
    for sampling in (0.0, 0.05, 0.5, 1.0):
        verdicts = {is_sampled(tenant, prompt, block_size=BLOCK, sampling=sampling) for prompt in family}
        assert len(verdicts) == 1
    assert is_sampled(tenant, first, block_size=BLOCK, sampling=1.0)
    assert not is_sampled(tenant, first, block_size=BLOCK, sampling=0.0)


def test_sampling_takes_its_share_of_families_and_tells_tenants_apart():
    prompts = [np.full(BLOCK, number, dtype=np.int32) for number in range(4000)]
    sampled = [
        {number for number, prompt in enumerate(prompts) if is_sampled(tenant, prompt, block_size=BLOCK, sampling=0.05)}
        for tenant in ("a", "b")
    ]
    # 200 wanted of each, and 10 in both; standard deviations 14 and 3
    assert 140 < len(sampled[0]) < 260
    assert 140 < len(sampled[1]) < 260
    assert len(sampled[0] & sampled[1]) < 25


@pytest.mark.parametrize(
    ("sampling", "max_model_len", "num_blocks"), [(1.0, 8, 1000), (0.05, 8, 50), (0.05, 8000, 1000), (0.05, 800, 100)]
)
def test_pool_of_a_sample_is_its_share_but_holds_the_longest_prompt(sampling, max_model_len, num_blocks):
    config = scaled_pool(config_of(1000), sampling=sampling, max_model_len=max_model_len)
    assert config == replace(config_of(1000), num_blocks=num_blocks)


@settings(max_examples=200)
@given(st.lists(texts, min_size=1, max_size=12), st.integers(6, 30), st.data())
def test_what_is_forgotten_is_gone_with_all_behind_it_and_nothing_else_is(requests, num_blocks, data):
    shadow = ShadowIndex[str](config_of(num_blocks, reuse_partial_blocks=False))
    prompts = [make_prompt(tokens, scopes=SCOPES[0]) for tokens in requests]
    for prompt in prompts:
        shadow.serve(prompt, "")
    before = [shadow.num_ready_tokens(prompt) for prompt in prompts]
    victim = data.draw(st.sampled_from(prompts))
    had = shadow.num_ready_tokens(victim)
    kept = data.draw(st.integers(0, len(victim.token_ids)))
    num_gone = shadow.forget(victim, kept)
    shadow.check_integrity()
    border = kept // BLOCK * BLOCK
    assert shadow.num_ready_tokens(victim) == min(had, border)
    assert (num_gone > 0) == (had > border)
    for prompt, had_tokens in zip(prompts, before, strict=True):
        common = prefix_length(prompt, victim)
        is_behind = common >= border + BLOCK and had > border
        assert shadow.num_ready_tokens(prompt) == (min(had_tokens, border) if is_behind else had_tokens)
    if num_gone:
        assert shadow.explain(victim).reason in ("evicted", "diverged")


def prefix_length(one: Prompt, other: Prompt) -> int:
    size = min(len(one.token_ids), len(other.token_ids))
    different = np.flatnonzero(one.token_ids[:size] != other.token_ids[:size])
    return int(different[0]) if len(different) else size
