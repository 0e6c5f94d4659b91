"""Why each block of a prompt was, or was not, taken from the cache."""

from __future__ import annotations

from prefixcache.block_index import NO_BLOCK, BlockIndex
from prefixcache.block_table import Match
from prefixcache.ghosts import GhostList
from prefixcache.hashing import TOKEN_BYTES
from prefixcache.interface import Explanation, Namespace, Reason
from prefixcache.overlap import common_tokens
from prefixcache.token_blocks import TokenBlocks


class Explainer:
    """Turns what a match found into reasons. Reads the index and the ghosts, changes nothing."""

    def __init__(self, index: BlockIndex, ghosts: GhostList, *, enabled: bool) -> None:
        self._index = index
        self._ghosts = ghosts
        self._enabled = enabled

    def count(self, match: Match, *, num_shared: int, num_blocks: int) -> dict[Reason, int]:
        """Reasons of the first `num_blocks` blocks, of which `num_shared` are used in place, in the blocks' order."""
        if not self._enabled:
            return {Reason.DISABLED: num_blocks}
        copied = match.partial_source is not None
        counts = {
            Reason.HIT: num_shared,
            Reason.SHARE_CAP: len(match.chain) - num_shared,
            Reason.COPIED: int(copied),
            Reason.NOT_READY: match.num_pending_blocks,
        }
        first = len(match.chain) + match.num_pending_blocks + copied
        if first < num_blocks:
            evicted = self._num_evicted(match, first)
            counts[Reason.EVICTED] = evicted
            rest = num_blocks - first - evicted
            if not evicted and not copied and match.overlap:
                counts[Reason.BELOW_MIN_REUSE] = 1
                rest -= 1
            reason = self._of_unknown_block(match)
            counts[reason] = counts.get(reason, 0) + rest
        return {reason: number for reason, number in counts.items() if number}

    def _of_unknown_block(self, match: Match) -> Reason:
        """The reason of a block that was never seen behind this chain."""
        if match.chain and not match.num_pending_blocks and self._has_other_child(match):
            return Reason.DIVERGED
        if match.is_stale:
            return Reason.COLD_RESTART
        return Reason.NEVER_CACHED

    def explain(self, match: Match, ready: bytearray, *, reveal_other_scopes: bool) -> Explanation:
        """Compare a prompt with all that is cached behind its matched blocks."""
        position, tokens = len(match.chain), match.tokens
        wanted = tokens.tokens_from(position, tokens.num_tokens)
        parent = match.chain[-1] if match.chain else NO_BLOCK
        namespace = tokens.namespace_at(position)
        children = [self._index.chunks[child] for child in self._index.children(parent, namespace) if ready[child]]
        nearest = max(children, key=lambda chunk: common_tokens(chunk, wanted), default=b"")
        overlap = common_tokens(nearest, wanted)
        diverging = (
            position * match.block_size + overlap if len(nearest) > overlap * TOKEN_BYTES < len(wanted) else None
        )
        reason = self._first_reason(match, wanted == nearest)
        if reveal_other_scopes and reason is not Reason.HIT and self._is_elsewhere(tokens, position, namespace):
            reason = Reason.OTHER_SCOPE
        return Explanation(
            num_prompt_tokens=tokens.num_tokens,
            num_cached_tokens=position * match.block_size,
            num_common_tokens=position * match.block_size + overlap,
            num_pending_tokens=match.num_pending_tokens,
            diverging_token=diverging,
            prompt_token_id=None if diverging is None else _token(wanted, overlap),
            cached_token_id=None if diverging is None else _token(nearest, overlap),
            reason=reason,
        )

    def _first_reason(self, match: Match, last_block_cached: bool) -> Reason:
        """The reason of the first block that is not cached."""
        num_blocks = match.tokens.num_full_blocks
        if last_block_cached and len(match.chain) == num_blocks - 1:
            return Reason.HIT  # only held back because a prompt's last token is always computed
        counts = self.count(match, num_shared=len(match.chain), num_blocks=len(match.chain) + 1)
        return next((reason for reason in counts if reason is not Reason.HIT), Reason.HIT)

    def _is_elsewhere(self, tokens: TokenBlocks, position: int, namespace: Namespace) -> bool:
        """Whether another namespace has the same full block behind the same text."""
        if position == tokens.num_full_blocks:
            return False
        ends = self._index.ends_of(tokens.chunks(0, position + 1))
        return any(self._index.namespaces[end] != namespace for end in ends)

    def _has_other_child(self, match: Match) -> bool:
        parent = match.chain[-1] if match.chain else NO_BLOCK
        namespace = match.tokens.namespace_at(len(match.chain))
        return next(self._index.children(parent, namespace), None) is not None

    def _num_evicted(self, match: Match, first: int) -> int:
        """Blocks from `first` on that were here. A chain is evicted from its tail, so the first unknown one ends it."""
        end = first
        while end < match.tokens.num_full_blocks and match.tokens.keys(end, end + 1)[0] in self._ghosts:
            end += 1
        return end - first


def _token(data: bytes, number: int) -> int:
    return int.from_bytes(data[number * TOKEN_BYTES :][:TOKEN_BYTES], "little", signed=True)
