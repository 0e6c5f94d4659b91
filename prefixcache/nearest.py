"""Which cached block goes on most like a prompt."""

from __future__ import annotations

from collections.abc import Sequence

from prefixcache.block_index import NO_BLOCK, BlockIndex
from prefixcache.hashing import TOKEN_BYTES
from prefixcache.interface import Namespace
from prefixcache.overlap import common_tokens

MAX_CANDIDATES = 32
"""Children compared, newest first: bounds the price of a miss behind a popular prefix."""


def likest_child(
    index: BlockIndex, ready: Sequence[int], parent: int, namespace: Namespace, wanted: bytes
) -> tuple[int, int]:
    """Find the READY child of a block that begins most like the `wanted` tokens; among equals the newest.

    Returns:
        It, or NO_BLOCK, and how many tokens it has in common with them, which may be none.
    """
    likest, most = NO_BLOCK, 0
    first_token = wanted[:TOKEN_BYTES]
    for child, _ in zip(index.children(parent, namespace), range(MAX_CANDIDATES), strict=False):
        if not ready[child]:
            continue
        if likest == NO_BLOCK:
            likest = child
        chunk = index.chunks[child]
        if chunk[:TOKEN_BYTES] == first_token:
            overlap = common_tokens(chunk, wanted)
            if overlap > most:
                likest, most = child, overlap
    return likest, most
