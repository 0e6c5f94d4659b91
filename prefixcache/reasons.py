"""Why each block of a prompt was, or was not, taken from the cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from prefixcache.block_index import NO_BLOCK, BlockIndex
from prefixcache.block_table import Match
from prefixcache.ghosts import GhostList
from prefixcache.hashing import TOKEN_BYTES
from prefixcache.interface import WINDOW_TOKENS, Explanation, Namespace, Reason
from prefixcache.token_blocks import TokenBlocks

_WINDOW_BYTES = WINDOW_TOKENS * TOKEN_BYTES
_IN_PART = (Reason.SHARE_CAP, Reason.BELOW_MIN_REUSE, Reason.COPIED)
"""Reasons of blocks that were there, if not in the end as a whole and in place."""


def main_reason(reasons: Mapping[Reason, int], *, num_computed_tokens: int) -> Reason:
    """The one reason why no more of a prompt was taken: that of the first block that was not there.

    Where all were there, if only in part, it is the most expensive part of that.

    Args:
        reasons: Blocks by reason, in the order of the blocks.
        num_computed_tokens: Tokens that were not taken; the last one of a prompt never is.
    """
    for reason in reasons:
        if reason is not Reason.HIT and reason not in _IN_PART:
            return reason
    if num_computed_tokens <= 1 and Reason.SHARE_CAP not in reasons:
        return Reason.HIT
    return next((reason for reason in _IN_PART if reason in reasons), Reason.HIT)


class Explainer:
    """Turns what a match found into reasons. Reads the index and the ghosts, changes nothing."""

    def __init__(self, index: BlockIndex, ready: Sequence[int], ghosts: GhostList) -> None:
        self._index = index
        self._ready = ready
        self._ghosts = ghosts

    def count(self, match: Match, *, num_shared: int, num_blocks: int) -> dict[Reason, int]:
        """Reasons of the first `num_blocks` blocks, of which `num_shared` are used in place, in the blocks' order."""
        if match.is_disabled:
            return {Reason.DISABLED: num_blocks}
        copied = match.partial_source is not None
        counts = {
            Reason.HIT: num_shared,
            Reason.SHARE_CAP: len(match.chain) - num_shared,
            Reason.COPIED: int(copied),
            Reason.NOT_READY: match.num_pending_blocks,
        }
        first = _first_unknown(match)
        if first < num_blocks:
            counts[Reason.EVICTED] = evicted = self._num_evicted(match, first)
            counts[Reason.COLD_RESTART] = earlier = max(0, match.num_earlier_blocks - first - evicted)
            rest = num_blocks - first - evicted - earlier
            if rest and not evicted and not earlier and not copied and match.overlap:
                counts[Reason.BELOW_MIN_REUSE] = 1
                rest -= 1
            counts[self._of_unknown_block(match)] = rest
        return {reason: number for reason, number in counts.items() if number}

    def _of_unknown_block(self, match: Match) -> Reason:
        """The reason of a block that was never seen behind this chain."""
        if match.chain and not match.num_pending_blocks and self._has_other_child(match):
            return Reason.DIVERGED
        return Reason.NEVER_CACHED

    def explain(self, match: Match, reasons: Mapping[Reason, int]) -> Explanation:
        """Compare a prompt with the nearest cached chain; `reasons` are those of all its blocks."""
        index, tokens, block_size = self._index, match.tokens, match.block_size
        position = len(match.chain)
        num_common = (position + match.num_pending_blocks) * block_size
        shown, ahead = match.pending_block, b""
        if shown is None and (shown := self._nearest(match)) is not None:
            num_common += match.overlap
            ahead = self._chain_text(shown, tokens, match.overlap * TOKEN_BYTES)
        if shown is None and match.chain:
            shown = match.chain[-1]
        evicted = Reason.EVICTED in reasons
        return Explanation(
            num_prompt_tokens=tokens.num_tokens,
            num_cached_tokens=match.num_cached_tokens,
            num_pending_tokens=match.num_pending_tokens,
            reason=main_reason(reasons, num_computed_tokens=tokens.num_tokens - match.num_cached_tokens),
            block=position,
            num_common_tokens=num_common,
            common=tokens.window(num_common - WINDOW_TOKENS, num_common),
            prompt_ahead=tokens.window(num_common, num_common + WINDOW_TOKENS),
            cached_ahead=ahead,
            owner=0 if shown is None else index.owners[shown],
            evictions_ago=self._ghosts.evictions_since(_key(match, _first_unknown(match))) if evicted else None,
            moment=index.next_uid,
        )

    def _nearest(self, match: Match) -> int | None:
        """The nearest block that the match saw, unless it is gone."""
        block, uid = match.nearest or (NO_BLOCK, 0)
        return block if block != NO_BLOCK and self._index.keys[block] and self._index.uids[block] == uid else None

    def _chain_text(self, block: int, tokens: TokenBlocks, start: int) -> bytes:
        """Tokens from byte `start` of a block on, and on over its newest READY children that this prompt may see."""
        index, ready, text = self._index, self._ready, b""
        while block != NO_BLOCK and len(text) < start + _WINDOW_BYTES:
            text += index.chunks[block]
            spaces = dict.fromkeys((index.namespaces[block], tokens.scopes[-1].namespace))
            children: Iterable[int] = chain.from_iterable(index.children(block, space) for space in spaces)
            block = next((child for child in children if ready[child]), NO_BLOCK)
        return text[start : start + _WINDOW_BYTES]

    def is_elsewhere(self, tokens: TokenBlocks, explanation: Explanation) -> bool:
        """Whether another namespace had the first missing block behind the same text, and has it still."""
        position = explanation.block
        if position >= tokens.num_full_blocks:
            return False
        namespace: Namespace = tokens.namespace_at(position)
        ends = self._index.ends_of(tokens.chunks(0, position + 1))
        return any(
            self._index.namespaces[end] != namespace and self._index.uids[end] < explanation.moment for end in ends
        )

    def _has_other_child(self, match: Match) -> bool:
        parent = match.chain[-1] if match.chain else NO_BLOCK
        namespace = match.tokens.namespace_at(len(match.chain))
        return next(self._index.children(parent, namespace), None) is not None

    def _num_evicted(self, match: Match, first: int) -> int:
        """Blocks from `first` on that were here. A chain is evicted from its tail, so the first unknown one ends it."""
        end = first
        while end < match.tokens.num_full_blocks and self._ghosts.evictions_since(_key(match, end)) is not None:
            end += 1
        return end - first


def _first_unknown(match: Match) -> int:
    """The first block that is neither there, nor copied in part, nor being computed."""
    return len(match.chain) + match.num_pending_blocks + (match.partial_source is not None)


def _key(match: Match, block: int) -> bytes:
    return match.tokens.keys(block, block + 1)[0]
