"""A hash finds a block, equality decides: nobody gets another tenant's, another parent's or another text's KV."""

from __future__ import annotations

import pytest

from prefixcache import Prompt, Reason, Scope, namespace
from prefixcache.hashing import xxh3_128
from tests.prefixcache.factories import (
    BLOCK,
    MODEL,
    PUBLIC,
    TENANT_A,
    TENANT_B,
    admit,
    compute,
    make_cache,
    make_prompt,
    serve,
)

A = (Scope(TENANT_A, 0),)
B = (Scope(TENANT_B, 0),)
PUBLIC_A = (Scope(PUBLIC, 1), Scope(TENANT_A, 0))
PUBLIC_B = (Scope(PUBLIC, 1), Scope(TENANT_B, 0))


def constant_hash(data: bytes, seed: int) -> bytes:
    return bytes(16)


def one_bit_hash(data: bytes, seed: int) -> bytes:
    return bytes([sum(data) & 1]) * 16


def hash_of_position(data: bytes, seed: int) -> bytes:
    """Blind to tokens and namespaces: all blocks at the same depth collide."""
    return xxh3_128(data[: -4 * BLOCK][-16:], seed)


def unhashed(prompt: Prompt) -> Prompt:
    """The cache hashes by itself, with the hasher of the test."""
    return Prompt(prompt.token_ids, b"", prompt.scopes, prompt.hash_epoch)


def cached_tokens(cache, prompt) -> int:
    with cache.match(prompt) as match:
        return match.num_cached_tokens


def test_match_other_tenant_same_text_misses():
    cache = make_cache()
    serve(cache, make_prompt(1, 2, [9], scopes=A))
    assert cached_tokens(cache, make_prompt(1, 2, [9], scopes=A)) == 2 * BLOCK
    assert cached_tokens(cache, make_prompt(1, 2, [9], scopes=B)) == 0
    assert admit(cache, make_prompt(1, 2, [9], scopes=B)).reasons == {Reason.NEVER_CACHED: 3}


def test_match_guessed_salt_only_narrows():
    cache = make_cache(16)
    serve(cache, make_prompt(1, [9], scopes=A))
    guesses = ("a", "tenant:a", "public", "")
    salted = [namespace(MODEL | {"cache_salt": guess}, scope="tenant:b") for guess in guesses]
    for space in salted:
        assert cached_tokens(cache, make_prompt(1, [9], scopes=[Scope(space, 0)])) == 0


def test_match_hashes_of_another_tenant_are_verified():
    cache = make_cache()
    serve(cache, make_prompt(1, 2, [9], scopes=A))
    honest = make_prompt(1, 2, [9], scopes=B)
    forged = Prompt(honest.token_ids, make_prompt(1, 2, [9], scopes=A).block_hashes, B, 0)
    assert cached_tokens(cache, forged) == 0
    assert cache.snapshot().counters["hash_collisions"] == 1


def test_match_public_prefix_is_shared_and_tails_are_not():
    cache = make_cache(16)
    serve(cache, make_prompt(1, 2, 3, [9], scopes=PUBLIC_A))
    assert cached_tokens(cache, make_prompt(1, 2, 3, [9], scopes=PUBLIC_A)) == 3 * BLOCK
    assert cached_tokens(cache, make_prompt(1, 2, 3, [9], scopes=PUBLIC_B)) == BLOCK


def test_match_partial_tail_of_another_tenant_is_not_copied():
    cache = make_cache(16, min_partial_tokens=4)
    serve(cache, make_prompt(1, [1, 2, 3, 4, 5, 6, 7, 8], [9], scopes=PUBLIC_A))
    same_start = [1, 2, 3, 4, 5, 0, 0, 0]
    assert cached_tokens(cache, make_prompt(1, same_start, [9], scopes=PUBLIC_A)) == BLOCK + 5
    assert cached_tokens(cache, make_prompt(1, same_start, [9], scopes=PUBLIC_B)) == BLOCK


def test_match_partial_tail_needs_the_same_namespace_behind_the_same_parent():
    cache = make_cache(16, min_partial_tokens=4)
    serve(cache, make_prompt(1, [1, 2, 3, 4, 5, 6, 7, 8], [9], scopes=(Scope(PUBLIC, 2), Scope(TENANT_A, 0))))
    assert cached_tokens(cache, make_prompt(1, [1, 2, 3, 4, 5, 0, 0, 0], [9], scopes=PUBLIC_A)) == BLOCK


def test_match_many_tenants_behind_a_public_prefix_do_not_crowd_out_a_partial_tail():
    cache = make_cache(128, min_partial_tokens=4)
    serve(cache, make_prompt(1, [1, 2, 3, 4, 5, 6, 7, 8], [9], scopes=PUBLIC_A))
    for number in range(50):
        space = namespace(MODEL, scope=f"tenant:{number}")
        serve(cache, make_prompt(1, 2, [9], scopes=(Scope(PUBLIC, 1), Scope(space, 0))))
    assert cached_tokens(cache, make_prompt(1, [1, 2, 3, 4, 5, 0, 0, 0], [9], scopes=PUBLIC_A)) == BLOCK + 5


@pytest.mark.parametrize("hasher", [constant_hash, one_bit_hash])
def test_match_colliding_hashes_are_misses_and_counted(hasher):
    cache = make_cache(16, hasher=hasher)
    serve(cache, unhashed(make_prompt(1, [9], scopes=A)))
    assert cached_tokens(cache, unhashed(make_prompt(1, [9], scopes=A))) == BLOCK
    others = [make_prompt(n, [9], scopes=A) for n in range(2, 9)] + [make_prompt(1, [9], scopes=B)]
    for prompt in others:
        assert cached_tokens(cache, unhashed(prompt)) == 0
        serve(cache, unhashed(prompt))
    assert cache.snapshot().counters["hash_collisions"] > 0


def test_match_same_tokens_behind_another_parent_miss():
    cache = make_cache(16, hasher=constant_hash)
    serve(cache, unhashed(make_prompt(1, [9])))
    assert cached_tokens(cache, unhashed(make_prompt(2, 1, [9]))) == 0
    # The block of text 1 is there at its root, not behind text 1 itself.
    assert cached_tokens(cache, unhashed(make_prompt(1, 1, [9]))) == BLOCK
    assert cached_tokens(cache, unhashed(make_prompt(1, 1, 1, 1, [9]))) == BLOCK


def test_match_long_run_of_collisions_is_verified_by_tokens():
    cache = make_cache(16, hasher=hash_of_position)
    serve(cache, unhashed(make_prompt(1, 2, 3, 4, [9])))
    assert cached_tokens(cache, unhashed(make_prompt(1, 2, 3, 4, [9]))) == 4 * BLOCK
    assert cached_tokens(cache, unhashed(make_prompt(1, 5, 6, 7, [9]))) == BLOCK
    assert cached_tokens(cache, unhashed(make_prompt(1, 2, 3, 7, [9]))) == 3 * BLOCK


def test_match_long_run_of_collisions_is_verified_by_namespace():
    cache = make_cache(16, hasher=hash_of_position)
    serve(cache, unhashed(make_prompt(1, 2, 3, 4, [9], scopes=PUBLIC_A)))
    assert cached_tokens(cache, unhashed(make_prompt(1, 2, 3, 4, [9], scopes=PUBLIC_A))) == 4 * BLOCK
    assert cached_tokens(cache, unhashed(make_prompt(1, 2, 3, 4, [9], scopes=PUBLIC_B))) == BLOCK


@pytest.mark.parametrize("min_partial_tokens", [8, 7])
def test_match_forged_hashes_behind_a_cached_parent_never_copy_a_whole_block(min_partial_tokens):
    cache = make_cache(12, min_partial_tokens=min_partial_tokens)
    serve(cache, make_prompt(1, 1, [9]))
    honest = make_prompt(1, 2, 3, [9])
    forged = Prompt(honest.token_ids, xxh3_128(b"", 1) + honest.block_hashes[16:], honest.scopes, 0)
    allocation = admit(cache, forged)
    assert all(copy.num_tokens < BLOCK for copy in allocation.copies)
    cache.free(compute(cache, allocation.table))
    cache.check_integrity()
    for number in range(20):
        serve(cache, make_prompt(number, number + 1, [9]))


def test_match_adjacent_scopes_of_one_namespace_are_one():
    cache = make_cache(12)
    serve(cache, make_prompt(1, 2, [9], scopes=(Scope(PUBLIC, 0),)))
    for scopes in [(PUBLIC, 1, PUBLIC), (PUBLIC, 99, PUBLIC), (PUBLIC, 1, TENANT_A, 0, PUBLIC)]:
        *pairs, last = scopes
        cut = tuple(Scope(space, size) for space, size in zip(pairs[::2], pairs[1::2], strict=True))
        prompt = make_prompt(1, 2, [9], scopes=(*cut, Scope(last, 0)))
        for same in (prompt, unhashed(prompt)):
            assert admit(cache, same).reasons == {Reason.HIT: 2, Reason.NEVER_CACHED: 1}


def test_public_scope_longer_than_the_prompt_leaves_the_rest_to_the_tenant():
    cache = make_cache(16)
    longer_a, longer_b = (Scope(PUBLIC, 99), A[0]), (Scope(PUBLIC, 99), B[0])
    table = admit(cache, make_prompt(1, 2, [7] * 4, scopes=longer_a), max_new_tokens=2 * BLOCK).table
    cache.commit(table, table.num_tokens, [7])
    for stop in range(table.num_tokens + 1, 4 * BLOCK):
        assert cache.grow(table, stop) == []
        cache.commit(table, stop, [7])
    cache.free(table)
    cache.check_integrity()
    text = (1, 2, [7] * 2 * BLOCK)
    assert cached_tokens(cache, make_prompt(*text, scopes=longer_b)) == 2 * BLOCK
    assert cached_tokens(cache, make_prompt(*text, scopes=(Scope(PUBLIC, 2), A[0]))) == 3 * BLOCK


def test_match_unknown_epoch_is_hashed_again():
    cache = make_cache(16, hash_seed=5, hash_epoch=2)
    serve(cache, make_prompt(1, 2, [9], epoch=1))
    again = make_prompt(1, 2, [9], epoch=3)
    assert cached_tokens(cache, Prompt(again.token_ids, b"\1" * 32, again.scopes, 3)) == 2 * BLOCK


def test_collision_is_never_overwritten():
    cache = make_cache(16, hasher=constant_hash)
    serve(cache, unhashed(make_prompt(1, [9])))
    serve(cache, unhashed(make_prompt(2, [9])))
    assert cached_tokens(cache, unhashed(make_prompt(1, [9]))) == BLOCK
    assert cached_tokens(cache, unhashed(make_prompt(2, [9]))) == 0
