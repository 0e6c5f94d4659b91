from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth import Identity
from gateway.backends.base import Admission, GenerationRequest, ModelInfo, Sampling
from gateway.prefix import PrefixHasher
from gateway.wire import cache_header
from prefixcache.hashing import hash_blocks, namespace
from prefixcache.interface import Scope

MODEL = ModelInfo(
    max_model_len=100,
    block_size=8,
    hash_seed=5,
    hash_epoch=1,
    namespace_fields={"model": "m"},
    eos_token_ids=frozenset(),
)
TOKENS = np.arange(20, dtype=np.int32)


def request(hasher: PrefixHasher, tenant: str = "a", model: ModelInfo = MODEL) -> GenerationRequest:
    return hasher.request("id", TOKENS, Sampling(max_tokens=1), identity=Identity(tenant), model=model)


def test_prompt_is_hashed_in_the_tenants_namespace() -> None:
    made = request(PrefixHasher())
    space = namespace({"model": "m"}, scope="tenant:a")
    assert made.scopes == [(space, 2)]
    assert made.block_hashes == hash_blocks(TOKENS, block_size=8, scopes=(Scope(space, 2),), seed=5)
    assert len(made.block_hashes) == 2 * 16


def test_namespaces_are_kept_apart_by_tenant_and_epoch() -> None:
    hasher = PrefixHasher()
    reloaded = dataclasses.replace(MODEL, hash_epoch=2, namespace_fields={"model": "n"})
    spaces = [request(hasher).scopes, request(hasher, "b").scopes, request(hasher, model=reloaded).scopes]
    assert len({scopes[0][0] for scopes in spaces}) == 3
    assert request(hasher).scopes == spaces[0]


@given(st.integers(0, 60), st.integers(0, 60))
def test_blocks_wholly_inside_a_public_prompt_are_everybodys_and_no_others(num_tokens: int, num_public: int) -> None:
    tokens, hasher = np.arange(num_tokens, dtype=np.int32), PrefixHasher()
    num_public = min(num_public, num_tokens)
    one, other = (
        hasher.prompt(tokens, identity=Identity(tenant), model=MODEL, num_public_tokens=num_public)
        for tenant in ("a", "b")
    )
    assert sum(num_blocks for _, num_blocks in one.scopes) == num_tokens // 8
    blocks = [[prompt.block_hashes[i : i + 16] for i in range(0, num_tokens // 8 * 16, 16)] for prompt in (one, other)]
    assert [a == b for a, b in zip(*blocks, strict=True)] == [i < num_public // 8 for i in range(num_tokens // 8)]


def test_cache_header_tells_what_was_reused_and_why_no_more() -> None:
    header = cache_header(Admission(30, 16, {"hit": 2, "diverged": 1}, "diverged"), ["a", "b"])
    assert header == b"cached=16; prompt=30; reason=diverged; rules=a,b"
    assert cache_header(Admission(30, 29, {"hit": 4}, "hit"), []).endswith(b"; rules=none")
