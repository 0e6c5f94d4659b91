"""What earlier lives of the worker had: as much as a list of all their prompts would say, and only of one's own."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import EngineReady
from gateway.backends.control import HashedPrompt
from gateway.backends.local.earlier_lives import MAX_LIVES, EarlierLives
from prefixcache.hashing import hash_blocks, namespace
from prefixcache.interface import Scope

BLOCK = 8


def life(number: int, *, num_blocks: int = 4096) -> EngineReady:
    return EngineReady(
        dtype="float32",
        device="cpu",
        max_model_len=100,
        block_size=BLOCK,
        num_blocks=num_blocks,
        hash_seed=1000 + number,
        hash_epoch=number,
        namespace_fields={"model": "tiny"},
        eos_token_ids=[],
        kv_bytes_per_token=1,
        warnings=[],
    )


def prompt(tokens: list[int], of: EngineReady, *, tenant: str = "a") -> HashedPrompt:
    scopes = [Scope(namespace(of.namespace_fields, scope=f"tenant:{tenant}"), 0)]
    ids = np.asarray(tokens, dtype=np.int32)
    hashes = hash_blocks(ids, block_size=BLOCK, scopes=scopes, seed=of.hash_seed)
    return HashedPrompt(
        token_ids=ids,
        block_hashes=hashes,
        scopes=[(scope.namespace, scope.num_blocks) for scope in scopes],
        hash_epoch=of.hash_epoch,
    )


texts = st.lists(st.integers(0, 1), min_size=1, max_size=5 * BLOCK)
sent = st.tuples(texts, st.sampled_from("ab"))


@given(lives=st.lists(st.lists(sent, max_size=3), min_size=1, max_size=MAX_LIVES + 1), asked=sent)
@settings(max_examples=200, deadline=None)
def test_earlier_lives_know_the_longest_beginning_that_the_same_tenant_sent(lives, asked) -> None:
    store = EarlierLives()
    for number, prompts in enumerate(lives):
        for tokens, tenant in prompts:
            store.begin(life(number))
            store.note(prompt(tokens, life(number), tenant=tenant))
    last = life(len(lives))
    store.begin(last)
    text, tenant = asked
    remembered = [prompts for prompts in lives if prompts][-MAX_LIVES:]
    known = [tokens for prompts in remembered for tokens, sender in prompts if sender == tenant]
    wanted = max((num_common_blocks(tokens, text) for tokens in known), default=0)
    assert store.num_blocks(prompt(text, last, tenant=tenant)) == wanted


def num_common_blocks(left: list[int], right: list[int]) -> int:
    blocks = range(min(len(left), len(right)) // BLOCK)
    return next((i for i in blocks if left[i * BLOCK :][:BLOCK] != right[i * BLOCK :][:BLOCK]), len(blocks))


def test_earlier_lives_say_nothing_of_what_the_present_one_was_sent() -> None:
    store, tokens = EarlierLives(), list(range(20))
    store.begin(life(0))
    store.note(prompt(tokens, life(0)))
    assert store.num_blocks(prompt(tokens, life(0))) == 0
    store.begin(life(1))
    assert store.num_blocks(prompt(tokens, life(1))) == 2
    store.note(prompt(tokens, life(1)))
    assert store.num_blocks(prompt(tokens, life(1))) == 0
    assert store.num_blocks(prompt(tokens[:7], life(1))) == 0


def test_earlier_lives_are_forgotten_oldest_first_and_hold_about_a_pool() -> None:
    store = EarlierLives()
    for number in range(MAX_LIVES + 2):
        store.begin(life(number, num_blocks=4))
        store.note(prompt([number] * BLOCK, life(number)))
    last = life(MAX_LIVES + 1)
    known = [store.num_blocks(prompt([number] * BLOCK, last)) for number in range(MAX_LIVES + 2)]
    assert known == [0, 1, 1, 1, 0]
    for number in range(100, 1100):
        store.note(prompt([number] * BLOCK, last))
    assert store._present is not None
    assert len(store._present._table) == 16


def test_earlier_lives_know_most_of_a_pool_full_of_prompts() -> None:
    random, store, before = np.random.default_rng(0), EarlierLives(), life(0, num_blocks=1000)
    prompts = [random.integers(0, 1000, 50 * BLOCK).tolist() for _ in range(20)]
    store.begin(before)
    for tokens in prompts:
        store.note(prompt(tokens, before))
    store.begin(life(1))
    assert min(store.num_blocks(prompt(tokens, life(1))) for tokens in prompts) >= 45


def test_prompt_hashed_before_a_restart_is_asked_for_and_not_noted() -> None:
    store, tokens = EarlierLives(), list(range(20))
    store.begin(life(0))
    store.note(prompt(tokens, life(0)))
    store.begin(life(1))
    stale = prompt(tokens, life(0))
    assert store.num_blocks(stale) == 2
    store.note(stale)
    assert store.num_blocks(prompt(tokens, life(1))) == 2
