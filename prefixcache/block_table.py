"""The handles that the cache gives out: a match that owns what it found, and the block table of a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Protocol

from prefixcache.interface import CopyOp, Explanation, Reason
from prefixcache.token_blocks import TokenBlocks


class BlockTable:
    """The blocks of one sequence. Callers read `block_ids` and `num_tokens`; only the cache writes."""

    __slots__ = (
        "block_ids",
        "block_size",
        "detached",
        "max_tokens",
        "num_computed_tokens",
        "num_indexed",
        "num_sequences",
        "num_tokens",
        "owner",
        "tokens",
    )

    def __init__(
        self, tokens: TokenBlocks, block_ids: list[int], *, num_tokens: int, num_computed_tokens: int, max_tokens: int
    ) -> None:
        self.tokens = tokens
        self.block_size = tokens.block_size
        self.block_ids = block_ids
        """In order."""
        self.num_tokens = num_tokens
        """Slots handed out so far."""
        self.num_computed_tokens = num_computed_tokens
        """Tokens whose KV is written and accepted."""
        self.max_tokens = max_tokens
        """The sequence never grows beyond this many."""
        self.num_sequences = 1
        """Itself and the forks that admission was asked for and that are still to come."""
        self.num_indexed = 0
        """The first blocks of the table that the index knows, as these very blocks."""
        self.owner = 0
        """The caller's number for the sequence, which its blocks carry; 0: none."""
        self.detached = False
        """No more of them are indexed while the sequence runs, see `table_index`."""

    @property
    def num_full_computed_blocks(self) -> int:
        """Leading blocks of which every token is computed."""
        return self.num_computed_tokens // self.block_size


class MatchOwner(Protocol):
    """The part of the cache that a match needs."""

    def release_match(self, match: Match) -> None:
        """Let go of all that the match has locked."""


class Match:
    """What of a prompt is in the cache now. Locks it until it is admitted or released."""

    __slots__ = (
        "_owner",
        "block_size",
        "chain",
        "is_collision",
        "is_disabled",
        "is_open",
        "nearest",
        "num_earlier_blocks",
        "num_partial_tokens",
        "num_pending_blocks",
        "overlap",
        "partial_source",
        "pending_block",
        "tokens",
    )

    def __init__(self, owner: MatchOwner, tokens: TokenBlocks, *, num_earlier_blocks: int) -> None:
        self._owner = owner
        self.tokens = tokens
        self.block_size = tokens.block_size
        self.num_earlier_blocks = num_earlier_blocks
        """Leading full blocks that an earlier life of the worker had."""
        self.is_open = True
        self.is_collision = False
        """The block behind the chain has a hash that is in the index with another identity."""
        self.is_disabled = False
        """Nothing was looked for."""
        self.chain: list[int] = []
        """READY blocks that hold the prompt's first blocks."""
        self.pending_block: int | None = None
        """The block directly behind the chain, where a running table is computing it."""
        self.num_pending_blocks = 0
        self.nearest: tuple[int, int] | None = None
        """(block, uid) of the READY block behind the chain that begins most like the prompt's next one; not locked."""
        self.partial_source: int | None = None
        """A READY block that begins like the prompt's next one."""
        self.overlap = 0
        """Tokens that the next block shares with the nearest block there, whether or not they are worth a copy."""
        self.num_partial_tokens = 0
        """Tokens of those to copy from `partial_source`: never the last one of a prompt."""

    @property
    def locked_blocks(self) -> list[int]:
        """What the match keeps from eviction, a parent before its child."""
        return self.chain if self.partial_source is None else [*self.chain, self.partial_source]

    @property
    def num_cached_tokens(self) -> int:
        """Tokens that `admit` takes from the cache, full blocks and partial copy; always fewer than the prompt has."""
        return len(self.chain) * self.block_size + (self.num_partial_tokens if self.partial_source is not None else 0)

    @property
    def num_pending_tokens(self) -> int:
        """Tokens in the blocks directly behind that another request is computing right now."""
        return self.num_pending_blocks * self.block_size

    def release(self) -> None:
        """Give the match up; harmless when it is admitted or released already."""
        if self.is_open:
            self._owner.release_match(self)

    def __enter__(self) -> Match:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


@dataclass(frozen=True, slots=True)
class Allocation:
    """What an admitted request got."""

    table: BlockTable
    num_cached_tokens: int
    """Tokens whose KV need not be computed."""
    copies: list[CopyOp]
    """To perform before the first forward pass, in order."""
    reasons: dict[Reason, int]
    """One reason for each block of the prompt, a last one that is not full included; in the order of the blocks, so that
    written out one after another they tell the reason of each."""
    explanation: Explanation
    """Of the same moment, before the request's own blocks were indexed."""


class Fork(NamedTuple):
    """A second sequence that goes on from the same computed tokens."""

    table: BlockTable
    copies: list[CopyOp]
    """To perform before the fork's first forward pass: the blocks that the sharing cap forbids to share."""
