"""How many leading tokens two blocks have in common."""

from __future__ import annotations

from prefixcache.hashing import TOKEN_BYTES


def common_tokens(left: bytes, right: bytes) -> int:
    """Length of the common prefix in whole tokens, without a loop over them."""
    size = min(len(left), len(right))
    difference = int.from_bytes(left[:size], "little") ^ int.from_bytes(right[:size], "little")
    if not difference:
        return size // TOKEN_BYTES
    lowest_bit = (difference & -difference).bit_length() - 1
    return lowest_bit // (8 * TOKEN_BYTES)
