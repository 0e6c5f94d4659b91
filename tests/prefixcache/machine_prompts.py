"""Prompts of the state machine: few texts in few scopes, so that they meet often, and hashes that lie."""

from __future__ import annotations

from itertools import chain

import numpy as np
from hypothesis import strategies as st

from prefixcache import Prompt, Scope, hash_blocks
from tests.prefixcache.factories import BLOCK, PUBLIC, TENANT_A, TENANT_B

SCOPES = [
    (Scope(TENANT_A, 0),),
    (Scope(PUBLIC, 1), Scope(TENANT_A, 0)),
    (Scope(PUBLIC, 1), Scope(TENANT_B, 0)),
    (Scope(TENANT_A, 1), Scope(TENANT_A, 0)),
    (Scope(PUBLIC, 1), Scope(PUBLIC, 99), Scope(TENANT_A, 0)),
]
TEXTS = [[1] * BLOCK, [1] * (BLOCK - 2) + [2, 2], [3] * BLOCK]


FORGERIES = {
    "none": lambda tokens, scopes: b"",
    "other seed": lambda tokens, scopes: hash_blocks(tokens, block_size=BLOCK, scopes=scopes, seed=99),
    "other scope": lambda tokens, scopes: hash_blocks(tokens, block_size=BLOCK, scopes=SCOPES[0], seed=0),
    "equal": lambda tokens, scopes: bytes(16 * (len(tokens) // BLOCK)),
    "shifted": lambda tokens, scopes: hash_blocks(tokens[::-1], block_size=BLOCK, scopes=scopes, seed=0),
}


def make_prompt(texts: list[int], tail: int, scopes: tuple[Scope, ...], is_forged: bool) -> Prompt:
    tokens = np.array([*chain.from_iterable(TEXTS[text] for text in texts), *[1] * tail] or [1], dtype=np.int32)
    return Prompt(tokens, b"forged" if is_forged else b"", scopes, 0)


prompts = st.builds(
    make_prompt,
    st.lists(st.sampled_from([0, 0, 0, 0, 1, 2]), min_size=1, max_size=4),
    st.integers(0, BLOCK - 1),
    st.sampled_from([*SCOPES[:1] * 3, *SCOPES]),
    st.booleans(),
)
