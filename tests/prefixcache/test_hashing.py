"""Block hashes and namespaces: fixed bytes, and no two inputs that mean different things meet."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from prefixcache import Scope, hash_blocks, namespace
from prefixcache.hashing import extend_hashes, token_view
from tests.prefixcache.factories import MODEL, PUBLIC, TENANT_A, TENANT_B

SEED = 7


def hashes(tokens, *scopes, seed=SEED):
    array = np.array(tokens, dtype=np.int32)
    data = hash_blocks(array, block_size=8, scopes=scopes or (Scope(TENANT_A, 0),), seed=seed)
    return [data[i : i + 16] for i in range(0, len(data), 16)]


def test_hash_blocks_follows_the_documented_layout():
    tokens = np.arange(20, dtype=np.int32)
    data = tokens.astype("<i4").tobytes()
    first = xxhash.xxh3_128(TENANT_A + bytes(16) + data[:32], seed=SEED).digest()
    second = xxhash.xxh3_128(first + data[32:64], seed=SEED).digest()
    assert hashes(tokens) == [first, second]


def test_hash_blocks_golden_value():
    assert hashes(range(8), Scope(bytes(32), 0), seed=0)[0].hex() == "92243a3e25c9e32658913c0cbf522bad"


def test_hash_blocks_fewer_tokens_than_a_block_gives_nothing():
    assert hashes(range(7)) == []
    assert hashes([]) == []


def test_hash_blocks_other_seed_changes_every_hash():
    assert not set(hashes(range(32))) & set(hashes(range(32), seed=SEED + 1))


def test_hash_blocks_public_prefix_is_equal_and_tails_are_not():
    of_a = hashes(range(32), Scope(PUBLIC, 2), Scope(TENANT_A, 0))
    of_b = hashes(range(32), Scope(PUBLIC, 2), Scope(TENANT_B, 0))
    assert of_a[:2] == of_b[:2]
    assert not set(of_a[2:]) & set(of_b[2:])


def test_hash_blocks_accepts_strided_and_wide_arrays():
    wide = np.arange(64, dtype=np.int64)[::2]
    assert hashes(wide) == hashes(range(0, 64, 2))


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6))
def test_extend_hashes_equals_hashing_at_once(known, public, total):
    tokens = np.arange(48, dtype=np.int32)
    scopes = (Scope(PUBLIC, public), Scope(TENANT_A, 0))
    whole = hash_blocks(tokens[: 8 * total], block_size=8, scopes=scopes, seed=SEED)
    begun = whole[: 16 * min(known, total)]
    settings = {"block_size": 8, "scopes": scopes, "seed": SEED}
    assert extend_hashes(begun, token_view(tokens), total, **settings) == whole


def test_namespace_any_changed_field_changes_it():
    fields = {"model": "m", "dtype": "int8", "block_size": "32"}
    spaces = [namespace(fields, scope="public"), namespace(fields, scope="tenant:a")]
    spaces += [namespace(fields | {name: "other"}, scope="public") for name in fields]
    spaces += [namespace({n: v for n, v in fields.items() if n != name}, scope="public") for name in fields]
    assert len(set(spaces)) == len(spaces)


LOOK_ALIKES = [
    ({"a": "bc"}, "public"),
    ({"ab": "c"}, "public"),
    ({"a": "b", "c": ""}, "public"),
    ({"a": "bNcVd"}, "public"),
    ({"a": "b", "c": "d"}, "public"),
    ({"a": "", "bc": ""}, "public"),
    ({"a": "b"}, "tenant:c"),
    ({"a": "b", "S": "tenant", "T": "c"}, "public"),
    ({"a": "b"}, "tenant:public"),
    ({"a": "b"}, "public"),
    ({}, "tenant:a:b"),
    ({}, "tenant:a"),
    ({"cache_salt": "c"}, "tenant:a"),
    ({}, "tenant:ac"),
]


def test_namespace_look_alikes_differ():
    spaces = {namespace(fields, scope=scope) for fields, scope in LOOK_ALIKES}
    assert len(spaces) == len(LOOK_ALIKES)


def test_namespace_ignores_the_order_of_fields():
    assert namespace({"a": "1", "b": "2"}, scope="public") == namespace({"b": "2", "a": "1"}, scope="public")


@pytest.mark.parametrize(
    ("fields", "scope", "name"),
    [({"model": "\ud800"}, "public", "model"), ({"\ud800": ""}, "public", "fields"), ({}, "tenant:\ud800", "scope")],
)
def test_namespace_of_what_is_no_text_raises(fields, scope, name):
    with pytest.raises(ValueError, match=f"^{name}: "):
        namespace(fields, scope=scope)


@pytest.mark.parametrize("token", [2**31, -(2**31) - 1, 2**33 + 1, 0.5])
def test_hash_blocks_of_a_token_that_is_no_int32_raises(token):
    with pytest.raises(ValueError, match="token_ids"):
        hash_blocks(np.array([token] * 9), block_size=8, scopes=(Scope(TENANT_A, 0),), seed=0)


def test_namespace_golden_value():
    digest = hashlib.sha256(b"prefixgate namespace 1")
    for tag, text in (
        (b"N", b"dtype"),
        (b"V", b"int8"),
        (b"N", b"model"),
        (b"V", b"tiny"),
        (b"S", b"public"),
        (b"T", b""),
    ):
        digest.update(tag + len(text).to_bytes(8, "little") + text)
    assert namespace(MODEL, scope="public") == digest.digest()


@pytest.mark.parametrize("scope", ["", "tenant", "tenant:", "Public", "user:a", "public:"])
def test_namespace_unknown_scope_raises(scope):
    with pytest.raises(ValueError, match="scope"):
        namespace({}, scope=scope)
