"""Finds what of a prompt is cached: its full blocks, and a block that begins like the next one. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from prefixcache.block_index import NO_BLOCK, BlockIndex
from prefixcache.block_table import Match, MatchOwner
from prefixcache.hashing import TOKEN_BYTES, Hasher
from prefixcache.interface import PrefixCacheConfig, Prompt
from prefixcache.nearest import likest_child
from prefixcache.token_blocks import TokenBlocks


class Finder:
    """Looks prompts up in the index; `ready` has a 1 for every READY block."""

    def __init__(self, config: PrefixCacheConfig, index: BlockIndex, ready: Sequence[int], hasher: Hasher) -> None:
        self._config = config
        self._index = index
        self._ready = ready
        self._hasher = hasher

    def find(self, prompt: Prompt, owner: MatchOwner, max_full_blocks: int | None = None) -> Match:
        """A match of all but the last token of a prompt, with nothing locked yet."""
        tokens = self.tokens_of(prompt)
        match = Match(owner, tokens, num_earlier_blocks=prompt.num_earlier_blocks)
        match.is_disabled = not (self._config.enabled and prompt.reuses)
        if not match.is_disabled:
            limit = (tokens.num_tokens - 1) // self._config.block_size
            if max_full_blocks is not None:
                limit = min(limit, max_full_blocks)
            chain = self._index.longest_chain(tokens, limit)
            match.is_collision = len(chain) < limit and tokens.keys(len(chain), len(chain) + 1)[0] in self._index.by_key
            match.chain = self._leading_ready(chain)
            match.num_pending_blocks = len(chain) - len(match.chain)
            match.pending_block = chain[len(match.chain)] if match.num_pending_blocks else None
            if not match.num_pending_blocks and max_full_blocks is None:
                self._find_nearest(match)
        return match

    def ready_blocks(self, prompt: Prompt) -> list[int]:
        """The READY full blocks of a prompt, from the root on; none where it reuses none."""
        if not prompt.reuses:
            return []
        tokens = self.tokens_of(prompt)
        return self._leading_ready(self._index.longest_chain(tokens, tokens.num_full_blocks))

    def tokens_of(self, prompt: Prompt) -> TokenBlocks:
        """A prompt cut into blocks."""
        return TokenBlocks.of_prompt(prompt, self._config, self._hasher)

    def _leading_ready(self, chain: list[int]) -> list[int]:
        num_ready = bytes(map(self._ready.__getitem__, chain)).find(0)
        return chain if num_ready < 0 else chain[:num_ready]

    def _find_nearest(self, match: Match) -> None:
        """Look behind the full blocks for the block that begins most like the prompt's next one.

        Never for a whole one: such a block is there under another hash, and its copy would be computed but PENDING.
        """
        position = len(match.chain)
        wanted = match.tokens.tokens_from(position, match.tokens.num_tokens)
        parent = match.chain[-1] if match.chain else NO_BLOCK
        namespace = match.tokens.namespace_at(position)
        nearest, match.overlap = likest_child(self._index, self._ready, parent, namespace, wanted)
        if nearest != NO_BLOCK:
            match.nearest = (nearest, self._index.uids[nearest])
        match.num_partial_tokens = min(match.overlap, len(wanted) // TOKEN_BYTES - 1)
        least = max(1, self._config.min_partial_tokens)
        if self._config.reuse_partial_blocks and match.num_partial_tokens >= least:
            match.partial_source = nearest
