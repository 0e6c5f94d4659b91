"""Every block of a prompt has one reason, and explain finds the first token that differs."""

from __future__ import annotations

from prefixcache import Prompt, Reason, Scope
from tests.prefixcache.factories import BLOCK, PUBLIC, TENANT_A, TENANT_B, admit, make_cache, make_prompt, serve

R = Reason
TEXT = [1, 2, 3, 4, 5, 6, 7, 8]


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


def test_reasons_prompt_hashed_before_a_restart_is_a_cold_restart():
    cache = make_cache(16, hash_epoch=2)
    assert admit(cache, make_prompt(1, 2, epoch=1)).reasons == {R.COLD_RESTART: 2}
    assert admit(cache, make_prompt(3, 4, epoch=2)).reasons == {R.NEVER_CACHED: 2}


def test_reasons_disabled_cache():
    cache = make_cache(16, enabled=False)
    serve(cache, make_prompt(1, 2))
    allocation = admit(cache, make_prompt(1, 2))
    assert (allocation.reasons, allocation.num_cached_tokens) == ({R.DISABLED: 2}, 0)
    assert cache.snapshot().cached_blocks == 0
    assert cache.explain(make_prompt(1, 2)).reason is R.DISABLED


def test_explain_finds_the_first_diverging_token():
    cache = make_cache(16)
    serve(cache, make_prompt(1, TEXT, [9]))
    serve(cache, make_prompt(1, [1, 2, 3, 4, 0, 0, 0, 0], [9]))
    before = list(cache._pool.queue)
    result = cache.explain(make_prompt(1, [1, 2, 3, 4, 5, 0, 0, 0], [9]))
    assert (result.num_cached_tokens, result.num_common_tokens) == (BLOCK, BLOCK + 5)
    assert (result.diverging_token, result.prompt_token_id, result.cached_token_id) == (BLOCK + 5, 0, 6)
    assert result.reason is R.BELOW_MIN_REUSE
    assert list(cache._pool.queue) == before


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
    cache = make_cache(16)
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
        assert cache.explain(prompt, reveal_other_scopes=True).reason is R.OTHER_SCOPE
        assert R.OTHER_SCOPE not in admit(cache, prompt).reasons


def test_explain_other_scope_may_be_the_public_one():
    cache = make_cache(16)
    serve(cache, make_prompt(1, 2, [9], scopes=(Scope(PUBLIC, 2), Scope(TENANT_A, 0))))
    prompt = make_prompt(1, 2, [9], scopes=(Scope(PUBLIC, 1), Scope(TENANT_A, 0)))
    assert cache.explain(prompt, reveal_other_scopes=True).reason is R.OTHER_SCOPE


def test_explain_other_scope_is_seen_behind_the_others_own_prefix():
    cache = make_cache(16)
    serve(cache, make_prompt(1, [9], scopes=(Scope(TENANT_A, 0),)))
    serve(cache, make_prompt(1, 2, [9], scopes=(Scope(TENANT_B, 0),)))
    for tail in (2, [9] * 7):
        prompt = make_prompt(1, tail, [9], scopes=(Scope(TENANT_A, 0),))
        expected = R.OTHER_SCOPE if tail == 2 else R.NEVER_CACHED
        assert cache.explain(prompt).reason is R.NEVER_CACHED
        assert cache.explain(prompt, reveal_other_scopes=True).reason is expected
    third = make_prompt(1, 2, 3, scopes=(Scope(PUBLIC, 1), Scope(TENANT_A, 0)))
    assert cache.explain(third, reveal_other_scopes=True).reason is R.OTHER_SCOPE


def test_explain_token_of_the_own_scope_only():
    cache = make_cache(16)
    serve(cache, make_prompt(TEXT, [9], scopes=(Scope(TENANT_A, 0),)))
    result = cache.explain(make_prompt([1, 2, 0, 0, 0, 0, 0, 0], [9], scopes=(Scope(TENANT_B, 0),)))
    assert (result.num_common_tokens, result.cached_token_id) == (0, None)
