"""What an engine can be asked and told beside generating: the values, and the part of the seam that takes them.

Handles name pins and priorities; the caller chooses them, and a handle that is used again replaces what it named. All
pins and priorities end with the engine's process: whoever wants them back after a restart says so again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from prefixcache.hashing import HASH_BYTES
from prefixcache.interface import Explanation


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HashedPrompt:
    """A prompt, hashed."""

    token_ids: npt.NDArray[np.int32]
    """[num_prompt_tokens], int32."""
    block_hashes: bytes
    """16 bytes for each full block."""
    scopes: Sequence[tuple[bytes, int]]
    """(namespace, number of blocks), in order."""
    hash_epoch: int

    def leading(self, num_blocks: int, block_size: int) -> HashedPrompt:
        """Give the prompt of so many leading blocks, or of all where there are fewer."""
        return HashedPrompt(
            token_ids=self.token_ids[: num_blocks * block_size],
            block_hashes=self.block_hashes[: num_blocks * HASH_BYTES],
            scopes=self.scopes,
            hash_epoch=self.hash_epoch,
        )


@dataclass(frozen=True, slots=True)
class WarmUp:
    """How computing a prompt ahead of use ended."""

    num_cached_tokens: int
    """In the leading full blocks of the prompt that are cached now."""
    refusal: str | None
    """Why not all of its full blocks are: `disabled`, `too_long`, `does_not_fit`, `evicted`, `failed` or `aborted`."""


@dataclass(frozen=True, slots=True)
class PinOutcome:
    """A pin or, where `refusal` says why, none; with the numbers of the pool after it."""

    refusal: str | None
    """`not_cached`, `max_pinned_ratio`, `max_shared_ratio` or `running_request` (`prefixcache.interface.PinRefusal`)."""
    num_blocks: int
    """Blocks of the prompt that are cached, and so are, or would have been, pinned."""
    pinned_blocks: int
    pinned_blocks_limit: int
    shared_blocks: int
    shared_blocks_limit: int


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """What may change while serving."""

    max_shared_ratio: float
    """Most of the pool that may be in common use."""
    growth_reserve: int
    """Tokens of growth kept free for every running request."""


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """One block of a request."""

    block_id: int
    state: str
    """`ready`: computed, others match it; `pending`: being computed; `private`: not full, or cached elsewhere."""
    ref_count: int
    shared: bool
    """ref_count >= 2 or pinned."""
    pinned: bool
    num_tokens: int
    """Computed tokens of this request in it."""
    reason: str | None
    """Of a prompt block, as decided at admission (`prefixcache.interface.Reason`); None: it holds the answer only."""


@dataclass(frozen=True, slots=True)
class RequestBlocks:
    """A request's block table: now, or when it ended. Its prompt blocks' reasons sum to `reasons`."""

    status: str
    """`waiting`: it has no blocks now; `running`; `ended`."""
    num_prompt_tokens: int
    num_cached_tokens: int
    """At admission, as in its usage figures."""
    reasons: Mapping[str, int]
    """Prompt blocks by reason, at admission."""
    blocks: Sequence[BlockInfo]


@dataclass(frozen=True, slots=True)
class ExplainedRequest:
    """What was cached for a request when it was admitted."""

    explanation: Explanation
    nearest_request_id: str | None
    """Of the completion that computed the nearest cached chain; None: a warm-up, or it is forgotten."""


class CacheControl(Protocol):
    """Every method raises `BackendUnavailableError` where the engine does not serve, dies or does not answer in time."""

    async def warm(self, prompt: HashedPrompt) -> WarmUp:
        """Compute a prompt's full blocks ahead of use, behind all user traffic.

        It may take long, and for ever beside traffic that never pauses: bound it with `asyncio.timeout`. Cancelling
        the wait stops the work; what is computed by then stays cached.
        """
        ...

    async def pin(self, handle: str, prompt: HashedPrompt) -> PinOutcome:
        """Keep the cached full blocks of a prompt from eviction, within the budgets.

        Requests that wait and do not fit beside the pins any more fail with a reason.
        """
        ...

    async def unpin(self, handle: str) -> bool:
        """Give a pin back; False: nothing is pinned under this handle."""
        ...

    async def prioritize(self, handle: str, prompt: HashedPrompt, *, level: int, seconds: float | None = None) -> int:
        """Evict the cached full blocks of a prompt after those of a lower level; return how many there are.

        Args:
            handle: names the priority.
            prompt: what is not cached now is not covered later either.
            level: 1 or more; everything else has 0.
            seconds: until it expires; None: never.

        Raises: RequestRejectedError: a value is out of bounds.
        """
        ...

    async def end_priority(self, handle: str) -> bool:
        """Give a priority back; False: there is none under this handle, or it has expired."""
        ...

    async def set_cache_options(
        self, *, max_shared_ratio: float | None = None, growth_reserve: int | None = None
    ) -> CacheOptions:
        """Change what is given and return all; without any value only return them.

        Raises: RequestRejectedError: a value is out of bounds, and nothing was changed.
        """
        ...

    async def blocks_of(self, request_id: str) -> RequestBlocks | None:
        """Look at a request's block table; None: it is not known, or ended too long ago."""
        ...

    async def blocks_by_namespace(self) -> Mapping[bytes, int]:
        """Count the blocks of each namespace that are cached or being computed; see `gateway.cache_shares`."""
        ...

    async def explain(self, prompt: HashedPrompt, *, reveal_other_scopes: bool = False) -> Explanation:
        """Tell what of a prompt is cached now and where the nearest cached text differs.

        Args:
            prompt: as for a generation.
            reveal_other_scopes: for the operator only: a tenant must never see `other_scope`.
        """
        ...

    async def explain_request(self, request_id: str, *, reveal_other_scopes: bool = False) -> ExplainedRequest | None:
        """Tell the same of a request at its admission, also after its end; None: not known (any more)."""
        ...
