"""Finds the registered prompt that a request's tokens begin with. Built anew when prompts change; asked for every one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gateway.tokenizer import TokenArray

_KEY_TOKENS = 8


@dataclass(frozen=True, slots=True, eq=False)
class RegisteredHead:
    """A version of a prompt that requests are held against."""

    prompt_id: str
    version: int
    tenant: str | None
    """Who may use it; None: it is public."""
    token_ids: TokenArray
    """[num_tokens], int32, at least 8."""


class HeadIndex:
    """All heads, by their first tokens."""

    def __init__(self, heads: Iterable[RegisteredHead] = ()) -> None:
        self._heads: dict[bytes, list[RegisteredHead]] = {}
        for head in heads:
            self.add(head)

    def add(self, head: RegisteredHead) -> None:
        """Know one more; of equal ones the first wins."""
        if len(head.token_ids) < _KEY_TOKENS:  # a shorter one fills no block
            return
        key = _key(head.token_ids)
        alike = [*self._heads.get(key, ()), head]
        self._heads[key] = sorted(alike, key=lambda head: -len(head.token_ids))

    def match(self, token_ids: TokenArray, tenant: str) -> RegisteredHead | None:
        """Return the longest head of this tenant, or public, that the prompt begins with."""
        return self._longest(token_ids, (tenant, None))

    def num_public_tokens(self, token_ids: TokenArray) -> int:
        """Return how many leading tokens are those of a public prompt: everybody may see their KV."""
        found = self._longest(token_ids, (None,))
        return len(found.token_ids) if found else 0

    def _longest(self, token_ids: TokenArray, owners: tuple[str | None, ...]) -> RegisteredHead | None:
        for head in self._heads.get(_key(token_ids), ()):
            if head.tenant in owners and np.array_equal(token_ids[: len(head.token_ids)], head.token_ids):
                return head
        return None


def _key(token_ids: TokenArray) -> bytes:
    return token_ids[:_KEY_TOKENS].tobytes()
