"""Every block of a prompt has one reason, and explain finds the first token that differs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixcache import Prompt, Reason, Scope
from prefixcache.interface import WINDOW_TOKENS
from prefixcache.reasons import main_reason
from tests.prefixcache.factories import (
    BLOCK,
    PUBLIC,
    TENANT_A,
    TENANT_B,
    admit,
    compute,
    make_cache,
    make_prompt,
    serve,
)

R = Reason
TEXT = [1, 2, 3, 4, 5, 6, 7, 8]


def ids(window: bytes) -> list[int]:
    return np.frombuffer(window, dtype="<i4").tolist()


def test_reasons_extended_history_is_new_not_diverged():
    cache = make_cache(16)
    serve(cache, make_prompt(1, 2))
    assert admit(cache, make_prompt(1, 2, 3, 4)).reasons == {R.HIT: 2, R.NEVER_CACHED: 2}


def test_reasons_changed_text_is_diverged():
    cache = make_cache(16)
    serve(cache, make_prompt(1, 2, 3))
    assert admit(cache, make_prompt(1, 5, 3)).reasons == {R.HIT: 1, R.DIVERGED: 2}


def test_reasons_changed_first_block_is_never_cached():
    cache = make_cache(16)
    serve(cache, make_prompt(1, 2, 3))
    assert admit(cache, make_prompt(5, 2, 3)).reasons == {R.NEVER_CACHED: 3}


def test_reasons_behind_a_block_in_the_making_are_not_diverged():
    cache = make_cache(16)
    serve(cache, make_prompt(1, [9]))
    admit(cache, make_prompt(1, 2, [9]))
    assert admit(cache, make_prompt(1, 2, 3, [9])).reasons == {R.HIT: 1, R.NOT_READY: 1, R.NEVER_CACHED: 2}


def test_reasons_evicted_blocks_are_told_apart():
    cache = make_cache(4)
    serve(cache, make_prompt(1, 2, 3))
    serve(cache, make_prompt(7, 8, [9]))
    assert admit(cache, make_prompt(1, 2, 3, [9])).reasons == {R.HIT: 1, R.EVICTED: 2, R.NEVER_CACHED: 1}


def test_reasons_without_ghosts_never_say_evicted():
    cache = make_cache(4, ghost_factor=0)
    serve(cache, make_prompt(1, 2, 3))
    serve(cache, make_prompt(7, 8, [9]))
    assert admit(cache, make_prompt(1, 2, 3, [9])).reasons == {R.HIT: 1, R.NEVER_CACHED: 3}


def test_reasons_too_short_a_start_is_below_min_reuse():
    cache = make_cache(16)
    serve(cache, make_prompt(1, TEXT, [9]))
    assert admit(cache, make_prompt(1, [1, 2, 0, 0, 0, 0, 0, 0], [9])).reasons == {
        R.HIT: 1,
        R.BELOW_MIN_REUSE: 1,
        R.DIVERGED: 1,
    }


def test_reasons_what_an_earlier_life_had_is_a_cold_restart():
    cache = make_cache(16)
    serve(cache, make_prompt(1, 7))
    prompt = replace(make_prompt(1, 2, 3, [9]), num_earlier_blocks=2)
    assert admit(cache, prompt).reasons == {R.HIT: 1, R.COLD_RESTART: 1, R.DIVERGED: 2}
    assert admit(cache, make_prompt(8, 4)).reasons == {R.NEVER_CACHED: 2}


def test_reasons_evicted_in_this_life_is_no_cold_restart():
    cache = make_cache(4)
    serve(cache, make_prompt(1, 2, 3))
    serve(cache, make_prompt(7, 8, [9]))
    prompt = replace(make_prompt(1, 2, 3, [9]), num_earlier_blocks=3)
    assert admit(cache, prompt).reasons == {R.HIT: 1, R.EVICTED: 2, R.NEVER_CACHED: 1}


@pytest.mark.parametrize(
    ("reasons", "num_computed_tokens", "main"),
    [
        ({R.HIT: 2, R.NEVER_CACHED: 1}, 9, R.NEVER_CACHED),
        ({R.HIT: 2, R.COPIED: 1, R.DIVERGED: 3}, 26, R.DIVERGED),
        ({R.HIT: 2, R.BELOW_MIN_REUSE: 1, R.DIVERGED: 3}, 26, R.DIVERGED),
        ({R.HIT: 2, R.EVICTED: 1, R.NEVER_CACHED: 3}, 26, R.EVICTED),
        ({R.HIT: 2, R.BELOW_MIN_REUSE: 1}, 8, R.BELOW_MIN_REUSE),
        ({R.HIT: 2, R.COPIED: 1}, 3, R.COPIED),
        ({R.HIT: 2, R.COPIED: 1}, 1, R.HIT),
        ({R.HIT: 2, R.SHARE_CAP: 1}, 1, R.SHARE_CAP),
        ({R.SHARE_CAP: 1, R.NOT_READY: 1}, 9, R.NOT_READY),
        ({R.HIT: 3}, 1, R.HIT),
    ],
)
def test_main_reason_is_that_of_the_first_block_that_was_not_there(reasons, num_computed_tokens, main):
    assert main_reason(reasons, num_computed_tokens=num_computed_tokens) is main


def test_reasons_disabled_cache():
    cache = make_cache(16, enabled=False)
    serve(cache, make_prompt(1, 2))
    allocation = admit(cache, make_prompt(1, 2))
    assert (allocation.reasons, allocation.num_cached_tokens) == ({R.DISABLED: 2}, 0)
    assert cache.snapshot().cached_blocks == 0
    assert cache.explain(make_prompt(1, 2)).reason is R.DISABLED


def test_explain_finds_the_first_diverging_token_and_shows_both_sides():
    cache = make_cache(16)
    serve(cache, make_prompt(1, TEXT, [9]))
    serve(cache, make_prompt(1, [1, 2, 3, 4, 0, 0, 0, 0], 6, [9]))
    before = list(cache._pool.queue)
    result = cache.explain(make_prompt(1, [1, 2, 3, 4, 0, 5, 0, 0], 5, 7, [9]))
    assert (result.block, result.num_cached_tokens, result.num_common_tokens) == (1, BLOCK, BLOCK + 5)
    assert result.diverging_token == BLOCK + 5
    assert ids(result.common) == [*range(100, 108), 1, 2, 3, 4, 0]
    assert ids(result.prompt_ahead) == [5, 0, 0, *range(500, 508), *range(700, 708), 9]
    assert ids(result.cached_ahead) == [0, 0, 0, *range(600, 608)]
    assert result.reason is R.DIVERGED
    assert list(cache._pool.queue) == before


def test_explanation_of_an_admission_is_of_the_moment_before_and_names_the_owner():
    cache = make_cache(16)
    serve(cache, make_prompt(1, TEXT, [9]), owner=4)
    serve(cache, make_prompt(1, 2, [9]), owner=5)
    changed = make_prompt(1, [1, 2, 3, 9, 9, 9, 9, 9], [9])
    result = serve(cache, changed, owner=6).explanation
    assert (result.reason, result.diverging_token, result.owner) == (R.DIVERGED, BLOCK + 3, 4)
    again = serve(cache, changed, owner=7).explanation
    assert (again.reason, again.diverging_token, again.owner) == (R.NEVER_CACHED, None, 6)


def test_explanation_of_a_shorter_prompt_has_no_difference():
    cache = make_cache(16)
    serve(cache, make_prompt(1, TEXT, [9]), owner=4)
    result = serve(cache, make_prompt(1, [1, 2, 3])).explanation
    assert (result.num_common_tokens, result.prompt_ahead, ids(result.cached_ahead)) == (11, b"", [4, 5, 6, 7, 8])
    assert (result.diverging_token, result.owner) == (None, 4)


def test_explanation_says_how_many_evictions_ago():
    cache = make_cache(4)
    serve(cache, make_prompt(1, 2))
    serve(cache, make_prompt(3, 4, 5, 6))  # evicts 2, then 1
    assert cache.explain(make_prompt(2, 1)).evictions_ago is None
    assert cache.explain(make_prompt(1, 2)).evictions_ago == 0
    serve(cache, make_prompt(7, 8, 9))
    assert cache.explain(make_prompt(1, 2, [9])).evictions_ago == 3


def test_explanation_names_the_owner_of_a_block_that_was_private_while_it_ran():
    cache = make_cache(16)
    first = admit(cache, make_prompt(1, 2, [9]), owner=1).table
    second = admit(cache, make_prompt(1, 2, 3, [9]), owner=2).table  # does not wait, and computes twins
    for table in (first, second):
        cache.free(compute(cache, table))
    assert [cache.explain(make_prompt(*range(1, n), [8])).owner for n in (2, 3, 4)] == [1, 2, 2]
    assert cache.explain(make_prompt(1, 2, 3, 4)).owner == 2


def test_explanation_of_a_kept_match_does_not_show_a_block_that_is_gone_since():
    cache = make_cache(4, min_partial_tokens=8)
    serve(cache, make_prompt(TEXT, [9]))
    with cache.match(make_prompt([1, 2, 3, 0, 0, 0, 0, 0])) as match:
        serve(cache, make_prompt(3, 4, 5, 6, scopes=(Scope(TENANT_B, 0),)))
        allocation = cache.admit(match, max_new_tokens=0)
    assert allocation is not None
    assert (allocation.explanation.cached_ahead, allocation.explanation.owner) == (b"", 0)


def test_explain_changes_no_counter():
    cache = make_cache(16, hasher=lambda data, seed: bytes(16))
    serve(cache, Prompt(make_prompt(1).token_ids, b"", make_prompt(1).scopes, 0))
    other = Prompt(make_prompt(2, 3).token_ids, b"", make_prompt(2).scopes, 0)
    before = cache.snapshot()
    cache.explain(other)
    assert cache.snapshot() == before
    cache.match(other).release()
    assert cache.snapshot().counters["hash_collisions"] == 1


def test_explain_chain_that_just_ends_has_no_diverging_token():
    cache = make_cache(16)
    serve(cache, make_prompt(1, [9]))
    result = cache.explain(make_prompt(1, 2))
    assert (result.num_cached_tokens, result.diverging_token, result.reason) == (BLOCK, None, R.NEVER_CACHED)


def test_explain_whole_prompt_cached_is_a_hit():
    cache = make_cache(16, min_partial_tokens=3)
    serve(cache, make_prompt(1, 2))
    assert cache.explain(make_prompt(1, 2)).reason is R.HIT


def test_explain_pending_block_is_not_ready():
    cache = make_cache(16)
    admit(cache, make_prompt(1, 2, [9]))
    result = cache.explain(make_prompt(1, 2, [7]))
    assert (result.reason, result.num_pending_tokens) == (R.NOT_READY, 2 * BLOCK)


def test_explain_other_scope_is_for_the_operator_only():
    cache = make_cache(16)
    public_a = (Scope(PUBLIC, 1), Scope(TENANT_A, 0))
    public_b = (Scope(PUBLIC, 1), Scope(TENANT_B, 0))
    serve(cache, make_prompt(1, 2, [9], scopes=public_a))
    for parts, scopes in (((1, 2, [9]), public_b), ((1, [9]), (Scope(TENANT_B, 0),))):
        prompt = make_prompt(*parts, scopes=scopes)
        assert cache.explain(prompt).reason is R.NEVER_CACHED
        assert cache.reveal(prompt, cache.explain(prompt)).reason is R.OTHER_SCOPE
        assert R.OTHER_SCOPE not in admit(cache, prompt).reasons


def test_other_scope_that_came_after_the_admission_does_not_count():
    cache = make_cache(16)
    mine, theirs = (make_prompt(1, 2, [9], scopes=(Scope(tenant, 0),)) for tenant in (TENANT_A, TENANT_B))
    explanation = serve(cache, mine).explanation
    serve(cache, theirs)
    assert cache.reveal(mine, explanation).reason is R.NEVER_CACHED
    late = make_prompt(1, 2, [9], scopes=(Scope(PUBLIC, 0),))
    assert cache.reveal(late, serve(cache, late).explanation).reason is R.OTHER_SCOPE


def test_explain_other_scope_may_be_the_public_one():
    cache = make_cache(16)
    serve(cache, make_prompt(1, 2, [9], scopes=(Scope(PUBLIC, 2), Scope(TENANT_A, 0))))
    prompt = make_prompt(1, 2, [9], scopes=(Scope(PUBLIC, 1), Scope(TENANT_A, 0)))
    assert cache.reveal(prompt, cache.explain(prompt)).reason is R.OTHER_SCOPE


def test_explain_other_scope_is_seen_behind_the_others_own_prefix():
    cache = make_cache(16)
    serve(cache, make_prompt(1, [9], scopes=(Scope(TENANT_A, 0),)))
    serve(cache, make_prompt(1, 2, [9], scopes=(Scope(TENANT_B, 0),)))
    for tail in (2, [9] * 7):
        prompt = make_prompt(1, tail, [9], scopes=(Scope(TENANT_A, 0),))
        expected = R.OTHER_SCOPE if tail == 2 else R.NEVER_CACHED
        assert cache.explain(prompt).reason is R.NEVER_CACHED
        assert cache.reveal(prompt, cache.explain(prompt)).reason is expected
    third = make_prompt(1, 2, 3, scopes=(Scope(PUBLIC, 1), Scope(TENANT_A, 0)))
    assert cache.reveal(third, cache.explain(third)).reason is R.OTHER_SCOPE


def test_explain_token_of_the_own_scope_only():
    cache = make_cache(16)
    serve(cache, make_prompt(TEXT, [9], scopes=(Scope(TENANT_A, 0),)))
    result = cache.explain(make_prompt([1, 2, 0, 0, 0, 0, 0, 0], [9], scopes=(Scope(TENANT_B, 0),)))
    assert (result.num_common_tokens, result.cached_ahead) == (0, b"")


texts = st.lists(st.integers(0, 2), min_size=1, max_size=5 * BLOCK)


@given(cached=st.lists(texts, max_size=6), changed=st.data(), prompt=texts, is_other=st.booleans())
@settings(max_examples=300, deadline=None)
def test_explanation_agrees_with_comparing_whole_texts(cached, changed, prompt, is_other):
    """The reference looks at all texts that were served, cut to full blocks, and at nothing else."""
    cache = make_cache(64, min_partial_tokens=3)
    for text in cached:
        serve(cache, make_prompt(text))
    if cached and changed.draw(st.booleans()):  # a prompt that begins like something cached
        base = changed.draw(st.sampled_from(cached))
        prompt = [*base[: changed.draw(st.integers(0, len(base)))], *prompt]
    scope = TENANT_B if is_other else TENANT_A
    result = serve(cache, make_prompt(prompt, scopes=(Scope(scope, 0),))).explanation

    known = [] if is_other else [text[: len(text) // BLOCK * BLOCK] for text in cached]
    most = max((common_length(text, prompt) for text in known), default=0)
    assert result.num_common_tokens == most
    assert result.block == min(most, len(prompt) - 1) // BLOCK
    assert ids(result.common) == prompt[max(0, most - WINDOW_TOKENS) : most]
    assert ids(result.prompt_ahead) == prompt[most : most + WINDOW_TOKENS]
    shown = [text[most : most + WINDOW_TOKENS] for text in known if common_length(text, prompt) == most]
    assert any(ids(result.cached_ahead) == text for text in shown) or not ids(result.cached_ahead)
    if any(shown):
        assert ids(result.cached_ahead)
    if result.diverging_token is not None:
        assert ids(result.prompt_ahead)[0] != ids(result.cached_ahead)[0]


def common_length(left: list[int], right: list[int]) -> int:
    return next(
        (i for i, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), min(map(len, (left, right)))
    )
