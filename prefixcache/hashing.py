"""Names for token blocks: the namespace they live in and the chained hash that finds them.

A block hash is an index and never an identity: xxh3 is not collision resistant, so the cache compares namespace,
parent and tokens on every hit. For the same reason a block hash never leaves the host and is never stored.

    first block of a scope   xxh3_128(seed; namespace[32] || parent hash[16] || tokens, int32 little endian)
    every later block        xxh3_128(seed; parent hash[16] || tokens)

The parent hash of a prompt's first block is 16 zero bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from struct import Struct

import numpy as np
import xxhash

from prefixcache.interface import BlockHash, Namespace, Scope, TokenArray

HASH_BYTES = 16
TOKEN_BYTES = 4
ROOT_HASH = BlockHash(bytes(HASH_BYTES))

Hasher = Callable[[bytes, int], bytes]
"""(data, seed) -> 16 bytes. Tests put a bad one in to prove that nothing but speed depends on it."""

xxh3_128: Hasher = xxhash.xxh3_128_digest


def namespace(fields: Mapping[str, str], *, scope: str) -> Namespace:
    """Digest of everything that changes KV bytes (`fields`) and of who may see them (`scope`).

    Every part is tagged and length-prefixed, so that no two different inputs give the same bytes to hash.

    Args:
        fields: Model and weight digest, dtype, KV format, block size, adapter, a narrowing salt and so on.
        scope: `public`, or `tenant:<id>` with the id of an authenticated tenant.
    """
    kind, separator, tenant = scope.partition(":")
    if scope != "public" and (kind != "tenant" or not separator or not tenant):
        raise ValueError(f"scope: got {scope!r}, wanted 'public' or 'tenant:<id>'")
    digest = hashlib.sha256(b"prefixgate namespace 1")
    for tag, name, text in _tagged(fields, kind, tenant):
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{name}: got {text!r}, wanted text that UTF-8 can encode") from error
        digest.update(tag + len(data).to_bytes(8, "little") + data)
    return Namespace(digest.digest())


def _tagged(fields: Mapping[str, str], kind: str, tenant: str) -> Iterator[tuple[bytes, str, str]]:
    """(tag, what it is called in an error, text) of all that is hashed."""
    for name in sorted(fields):
        yield b"N", "fields", name
        yield b"V", name, fields[name]
    yield b"S", "scope", kind
    yield b"T", "scope", tenant


def token_view(token_ids: TokenArray) -> memoryview:
    """The bytes of an array of token ids, int32 little endian, without a copy where the array is that already.

    Raises:
        ValueError: a token id is not an int32.
    """
    narrow = np.ascontiguousarray(token_ids, dtype="<i4")
    if narrow is not token_ids and not np.array_equal(narrow, token_ids):
        raise ValueError("token_ids: got one that is not an int32")
    return narrow.view(np.uint8).data


def tidy_scopes(scopes: Sequence[Scope], num_blocks: int) -> tuple[Scope, ...]:
    """Scopes of a prompt with `num_blocks` full blocks: none empty but the last, neighbours of one namespace as one.

    All but the last end within the full blocks: the rest of the prompt and the answer are the last one's.
    """
    if len(scopes) < 2:
        return tuple(scopes)
    tidy: list[Scope] = []
    start = 0
    for scope in scopes[:-1]:
        size = min(scope.num_blocks, num_blocks - start)
        if size > 0:
            tidy.append(Scope(scope.namespace, size))
            start += size
    runs = groupby([*tidy, scopes[-1]], key=attrgetter("namespace"))
    return tuple(Scope(space, sum(scope.num_blocks for scope in run)) for space, run in runs)


def scope_runs(scopes: Sequence[Scope], start: int, stop: int) -> Iterator[tuple[Namespace, int, int, bool]]:
    """Cut blocks [start, stop) at the borders of scopes.

    Yields:
        (namespace, first block, end, whether the first block is the first of its scope). Only the last scope is open
        ended; scopes without blocks are skipped.
    """
    scope_start = 0
    for number, scope in enumerate(scopes, 1):
        scope_stop = stop if number == len(scopes) else min(stop, scope_start + scope.num_blocks)
        first = max(start, scope_start)
        if first < scope_stop:
            yield scope.namespace, first, scope_stop, first == scope_start
        scope_start = max(scope_start, scope_stop)


def hash_blocks(
    token_ids: TokenArray,
    *,
    block_size: int,
    scopes: Sequence[Scope],
    seed: int,
    hasher: Hasher = xxh3_128,
) -> bytes:
    """Hashes of all full blocks of a prompt, 16 bytes each, in order."""
    data = token_view(token_ids)
    num_blocks = len(data) // (block_size * TOKEN_BYTES)
    scopes = tidy_scopes(scopes, num_blocks)
    return extend_hashes(b"", data, num_blocks, block_size=block_size, scopes=scopes, seed=seed, hasher=hasher)


def extend_hashes(
    known: bytes,
    data: memoryview,
    num_blocks: int,
    *,
    block_size: int,
    scopes: Sequence[Scope],
    seed: int,
    hasher: Hasher = xxh3_128,
) -> bytes:
    """The `known` hashes and those behind them, up to `num_blocks`; `data` are the bytes of all tokens."""
    block_bytes = block_size * TOKEN_BYTES
    chunks = Struct(f"{block_bytes}s").iter_unpack
    parent: bytes = known[-HASH_BYTES:] or ROOT_HASH
    hashes: list[bytes] = []
    append = hashes.append
    for space, start, stop, opens_scope in scope_runs(scopes, len(known) // HASH_BYTES, num_blocks):
        prefix: bytes = space if opens_scope else b""
        for (chunk,) in chunks(data[start * block_bytes : stop * block_bytes]):
            parent = hasher(prefix + parent + chunk, seed)
            prefix = b""
            append(parent)
    return known + b"".join(hashes)
