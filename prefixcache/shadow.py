"""What a prefix cache would have reused of prompts that it was never sent: the cache's own code with no KV behind it.

Prompts come one after another and each is computed at once, so nothing is PENDING and nothing is shared at the same
time. Each block keeps a mark of the prompt that brought it, so that a later prompt can be compared with that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Generic, TypeVar

import numpy as np
import xxhash

from prefixcache.admission import blocks_for
from prefixcache.block_table import Allocation, Match
from prefixcache.hashing import tidy_scopes, token_view
from prefixcache.interface import PrefixCacheConfig, Prompt, TokenArray
from prefixcache.manager import PrefixCache

Mark = TypeVar("Mark")


@dataclass(frozen=True, slots=True)
class ShadowHit(Generic[Mark]):
    """What the cache would have reused of one prompt."""

    num_cached_tokens: int
    """As at admission: full blocks and partial copy, always fewer than the prompt has."""
    mark: Mark | None
    """Of the prompt that brought the last of them; None: nothing was reused."""


class ShadowIndex(PrefixCache, Generic[Mark]):
    """A cache that only says what it would have done."""

    def __init__(self, config: PrefixCacheConfig) -> None:
        super().__init__(config)
        self._marks: dict[int, Mark] = {}
        """By block; those of blocks that are free now are stale."""

    @property
    def num_evicted(self) -> int:
        """Blocks that made room for others since the start."""
        return self._counters["evicted_blocks"]

    def serve(self, prompt: Prompt, mark: Mark, *, owner: int = 0) -> ShadowHit[Mark] | None:
        """Look a prompt up, then cache it; None: it is larger than the whole pool, and nothing happened.

        Explanations of later prompts name the `owner`.
        """
        with self.match(prompt) as match:
            found = match.locked_blocks
            allocation = self._compute(match, mark, owner)
        if allocation is None:
            return None
        return ShadowHit(allocation.num_cached_tokens, self._marks[found[-1]] if found else None)

    def extend(self, prompt: Prompt, answer: Sequence[int], mark: Mark) -> None:
        """Cache what was generated behind a prompt that was served.

        A real cache takes a block more for it where the prompt ends with a block that was cached before.

        Args:
            prompt: That prompt.
            answer: The generated tokens whose KV exists, which is all but the last.
            mark: The prompt's.
        """
        if not len(answer):
            return
        num_prompt_blocks = len(prompt.token_ids) // self.config.block_size
        token_ids = np.concatenate((prompt.token_ids, np.asarray(answer, dtype=np.int32)))
        scopes = tidy_scopes(prompt.scopes, num_prompt_blocks)
        longer = Prompt(token_ids, b"", scopes, self.config.hash_epoch)
        # A request that runs looks nothing up any more: what it generates it computes.
        with self.match(longer, max_full_blocks=num_prompt_blocks) as match:
            self._compute(match, mark)

    def forget(self, prompt: Prompt, num_tokens: int) -> int:
        """Drop what is cached of a prompt behind its first `num_tokens` tokens, with all that goes on from there.

        For a shadow of a cache that turned out to have less. What goes counts as evicted.

        Args:
            prompt: of one scope.
            num_tokens: blocks that lie within them stay.

        Returns: how many blocks are gone.
        """
        index = self._index
        gone = self._finder.ready_blocks(prompt)[num_tokens // self.config.block_size :][:1]
        for block in gone:  # which grows meanwhile: a parent stands before its children
            gone += index.children(block, index.namespaces[block])
        gone.reverse()
        self._pool.drop(gone)
        self._ghosts.add(index.forget(gone))
        self._counters["evicted_blocks"] += len(gone)
        return len(gone)

    def _compute(self, match: Match, mark: Mark, owner: int = 0) -> Allocation | None:
        """Cache a matched prompt whole; the blocks that it does not share are its own."""
        num_shared = len(match.chain)
        allocation = self.admit(match, max_new_tokens=0, owner=owner)
        if allocation is not None:
            table = allocation.table
            self._marks.update(dict.fromkeys(table.block_ids[num_shared:], mark))
            self.commit(table, table.num_tokens)
            self.free(table)
        return allocation


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
