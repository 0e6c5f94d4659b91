"""What a prefix cache would have reused of prompts that it was never sent: the cache's own code with no KV behind it.

Prompts come one after another and each is computed at once, so nothing is PENDING and nothing is shared at the same
time. A block may carry the *owner* of a change: whoever would have made its text another. When a later prompt stops
matching there, that owner is the one to credit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

import numpy as np
import xxhash

from prefixcache.admission import blocks_for
from prefixcache.block_table import Allocation, Match
from prefixcache.hashing import tidy_scopes, token_view
from prefixcache.interface import PrefixCacheConfig, Prompt, TokenArray
from prefixcache.manager import PrefixCache
from prefixcache.overlap import common_tokens


class Change(NamedTuple):
    """Tokens [start, stop) of a prompt would be others, were it not for `owner`; an empty span: some are missing."""

    start: int
    stop: int
    owner: str


@dataclass(frozen=True, slots=True)
class ShadowHit:
    """What the cache would have reused of one prompt."""

    num_cached_tokens: int
    """As at admission: full blocks and partial copy, always fewer than the prompt has."""
    owner: str | None
    """Whose change is where the prompt leaves what is cached. None: nobody's, or it does not leave it: nothing is
    cached behind, or what was is evicted."""


class ShadowIndex(PrefixCache):
    """A cache that only says what it would have done."""

    def __init__(self, config: PrefixCacheConfig) -> None:
        super().__init__(config)
        self._owners: dict[int, str] = {}
        """Of blocks that somebody's change is in."""

    def serve(self, prompt: Prompt, changes: Sequence[Change] = ()) -> ShadowHit | None:
        """Look a prompt up, then cache it; None: it is larger than the whole pool, and nothing happened.

        Args:
            prompt: As for `match`.
            changes: May overlap; of several at one place the shortest counts.
        """
        with self.match(prompt) as match:
            owner = self._owner_of_divergence(match, changes)
            allocation = self._compute(match, changes)
        return None if allocation is None else ShadowHit(allocation.num_cached_tokens, owner)

    def extend(self, prompt: Prompt, answer: Sequence[int]) -> None:
        """Cache what was generated behind a prompt that was served.

        A real cache takes a block more for it where the prompt ends with a block that was cached before.

        Args:
            prompt: That prompt.
            answer: The generated tokens whose KV exists, which is all but the last.
        """
        if not len(answer):
            return
        num_prompt_blocks = len(prompt.token_ids) // self.config.block_size
        token_ids = np.concatenate((prompt.token_ids, np.asarray(answer, dtype=np.int32)))
        scopes = tidy_scopes(prompt.scopes, num_prompt_blocks)
        longer = Prompt(token_ids, b"", scopes, self.config.hash_epoch)
        # A request that runs looks nothing up any more: what it generates it computes.
        with self.match(longer, max_full_blocks=num_prompt_blocks) as match:
            self._compute(match, ())

    def _compute(self, match: Match, changes: Sequence[Change]) -> Allocation | None:
        """Cache a matched prompt whole; the blocks that it does not share take the owners of its changes."""
        num_shared = len(match.chain)
        allocation = self.admit(match, max_new_tokens=0)
        if allocation is not None:
            table = allocation.table
            self.commit(table, table.num_tokens)
            self.free(table)
            self._note_owners(table.block_ids, num_shared, changes)
        return allocation

    def _owner_of_divergence(self, match: Match, changes: Sequence[Change]) -> str | None:
        if not (changes or self._owners):
            return None
        position, tokens = len(match.chain), match.tokens
        if position < tokens.num_full_blocks and tokens.keys(position, position + 1)[0] in self._ghosts:
            return None
        nearest = self._finder.nearest(match)
        if nearest is None:
            return None
        wanted = tokens.tokens_from(position, tokens.num_tokens)
        token = position * tokens.block_size + common_tokens(self._index.chunks[nearest], wanted)
        return owner_at(changes, token, token) or self._owners.get(nearest)

    def _note_owners(self, block_ids: Sequence[int], start: int, changes: Sequence[Change]) -> None:
        size = self.config.block_size
        for position in range(start, len(block_ids)):
            owner = owner_at(changes, position * size, (position + 1) * size - 1)
            if owner is not None:
                self._owners[block_ids[position]] = owner
            elif self._owners:
                self._owners.pop(block_ids[position], None)


def owner_at(changes: Iterable[Change], first: int, last: int) -> str | None:
    """The owner of the shortest change that touches tokens `first` to `last`; one that ends right before `first` does.

    Where a changed text is shorter than another, the two part at the token behind it.
    """
    touching = (change for change in changes if change.start <= last and first <= change.stop)
    shortest = min(touching, key=lambda change: change.stop - change.start, default=None)
    return None if shortest is None else shortest.owner


def is_sampled(tenant: str, token_ids: TokenArray, *, block_size: int, sampling: float) -> bool:
    """Whether a family is in the sample: all prompts of a tenant that begin with the same block.

    Args:
        tenant: Whose they are.
        token_ids: [num_prompt_tokens], int32, of the canonical form, so that a family stays together.
        block_size: Tokens of a block.
        sampling: Share of all families that is in, 0 to 1.
    """
    name = tenant.encode()
    digest = xxhash.xxh3_64(len(name).to_bytes(8, "little") + name)
    digest.update(token_view(token_ids[:block_size]))
    return digest.intdigest() < sampling * 2**64


def scaled_pool(config: PrefixCacheConfig, *, sampling: float, max_model_len: int) -> PrefixCacheConfig:
    """A pool for a sample of the families: its share of the blocks, but at least what the longest prompt takes.

    Source: Waldspurger et al. 2015, Efficient MRC construction with SHARDS, §3.1.
    """
    at_least = blocks_for(max_model_len, config.block_size)
    num_blocks = min(config.num_blocks, max(ceil(sampling * config.num_blocks), at_least))
    return replace(config, num_blocks=num_blocks, growth_reserve=0)
