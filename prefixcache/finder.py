"""Finds what of a prompt is cached: its full blocks, and a block that begins like the next one. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from prefixcache.block_index import NO_BLOCK, BlockIndex
from prefixcache.block_table import Match, MatchOwner
from prefixcache.hashing import Hasher
from prefixcache.interface import PrefixCacheConfig, Prompt
from prefixcache.overlap import common_tokens
from prefixcache.token_blocks import TokenBlocks

MAX_CANDIDATES = 32
"""Children compared for a partial match, newest first: bounds the price of a miss behind a popular prefix."""


class Finder:
    """Looks prompts up in the index; `ready` has a 1 for every READY block."""

    def __init__(self, config: PrefixCacheConfig, index: BlockIndex, ready: Sequence[int], hasher: Hasher) -> None:
        self._config = config
        self._index = index
        self._ready = ready
        self._hasher = hasher

    def find(self, prompt: Prompt, owner: MatchOwner, max_full_blocks: int | None = None) -> Match:
        """A match of all but the last token of a prompt, with nothing locked yet."""
        tokens = TokenBlocks.of_prompt(prompt, self._config, self._hasher)
        is_stale = bool(prompt.block_hashes) and prompt.hash_epoch != self._config.hash_epoch
        match = Match(owner, tokens, is_stale=is_stale)
        if self._config.enabled:
            limit = (tokens.num_tokens - 1) // self._config.block_size
            if max_full_blocks is not None:
                limit = min(limit, max_full_blocks)
            chain = self._index.longest_chain(tokens, limit)
            match.is_collision = len(chain) < limit and tokens.keys(len(chain), len(chain) + 1)[0] in self._index.by_key
            match.chain = self._leading_ready(chain)
            match.num_pending_blocks = len(chain) - len(match.chain)
            match.pending_block = chain[len(match.chain)] if match.num_pending_blocks else None
            if self._config.reuse_partial_blocks and not match.num_pending_blocks and max_full_blocks is None:
                self._find_partial(match)
        return match

    def ready_blocks(self, prompt: Prompt) -> list[int]:
        """The READY full blocks of a prompt, from the root on."""
        tokens = TokenBlocks.of_prompt(prompt, self._config, self._hasher)
        return self._leading_ready(self._index.longest_chain(tokens, tokens.num_full_blocks))

    def _leading_ready(self, chain: list[int]) -> list[int]:
        num_ready = bytes(map(self._ready.__getitem__, chain)).find(0)
        return chain if num_ready < 0 else chain[:num_ready]

    def _find_partial(self, match: Match) -> None:
        """Look behind the full blocks for the block that begins most like the prompt's next one.

        Never for a whole one: such a block is there under another hash, and its copy would be computed but PENDING.
        """
        position = len(match.chain)
        stop = min(match.tokens.num_tokens, (position + 1) * match.block_size)
        wanted = match.tokens.tokens_from(position, stop - 1)
        parent = match.chain[-1] if match.chain else NO_BLOCK
        candidates = self._index.children(parent, match.tokens.namespace_at(position))
        for child, _ in zip(candidates, range(MAX_CANDIDATES), strict=False):
            chunk = self._index.chunks[child]
            if chunk[:4] == wanted[:4] and self._ready[child]:
                overlap = common_tokens(chunk, wanted)
                if overlap > match.overlap:
                    match.overlap = overlap
                    match.partial_source = child
        if match.overlap < self._config.min_partial_tokens:
            match.partial_source = None
