"""The values that cross the border of the prefix cache.

Owns no state and no policy. The gateway builds a `Prompt`, the scheduler asks the cache with it and gets the other
values back; nobody outside this package touches a block.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, NewType

import numpy as np
import numpy.typing as npt

BlockHash = NewType("BlockHash", bytes)
"""16 bytes, an index and never an identity."""

Namespace = NewType("Namespace", bytes)
"""32 bytes: SHA-256 over everything that changes KV bytes or who may see them."""

TokenArray = npt.NDArray[np.int32]

WINDOW_TOKENS = 48
"""Tokens that an explanation shows on each side of a difference."""


class Reason(StrEnum):
    """Why a prompt block was, or was not, taken from the cache: a closed list, one reason a block."""

    HIT = "hit"
    COPIED = "copied"
    SHARE_CAP = "share_cap"
    NEVER_CACHED = "never_cached"
    DIVERGED = "diverged"
    EVICTED = "evicted"
    COLD_RESTART = "cold_restart"
    BELOW_MIN_REUSE = "below_min_reuse"
    NOT_READY = "not_ready"
    DISABLED = "disabled"
    """Nothing was looked for: caching is off, or the request wants its whole prompt computed."""
    OTHER_SCOPE = "other_scope"
    """Admin API only; a tenant reads `never_cached`."""


@dataclass(frozen=True, slots=True)
class Scope:
    """A run of a prompt's first blocks that lives in one namespace."""

    namespace: Namespace
    num_blocks: int
    """Full blocks in this run; the last scope of a prompt covers all the rest, whatever it says."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """A tokenized prompt, hashed at the ingress."""

    token_ids: TokenArray
    """[num_prompt_tokens], int32, never empty."""
    block_hashes: bytes
    """16 bytes for each *full* block, in order; empty: the cache hashes by itself."""
    scopes: tuple[Scope, ...]
    """At least one."""
    hash_epoch: int
    """Names the seed that made `block_hashes`; on another one the cache hashes again."""
    num_earlier_blocks: int = 0
    """Leading full blocks that an earlier life of the worker had; they only explain a miss."""
    reuses: bool = True
    """False: nothing of it is taken from the cache, for each token is wanted computed; others may still take it."""


@dataclass(frozen=True, slots=True)
class CopyOp:
    """Copy the KV of the first `num_tokens` slots of block `src` to block `dst`, in every layer.

    The cache decides, the model runner performs it before the step's forward pass. Every copy that was handed out is
    performed, in order, even when its request is preempted before the step: a later copy may write the source of an
    earlier one, and a copied block may be cached already.
    """

    src: int
    dst: int
    num_tokens: int


class BlockStateError(RuntimeError):
    """A caller broke the life cycle of a block, for example freed a table twice."""


@dataclass(frozen=True, slots=True)
class PrefixCacheConfig:
    """What a cache is built with."""

    num_blocks: int
    """Blocks in the pool."""
    block_size: int = 32
    """Tokens a block: 8, 16, 32 or 64."""
    hash_seed: int = 0
    """64-bit seed of the block hashes; the worker draws it from `os.urandom`."""
    hash_epoch: int = 0
    """Names `hash_seed` without telling it."""
    enabled: bool = True
    """False: nothing matches and every block's reason is `disabled`."""
    policy: str = "lru"
    """Eviction policy: `lru` or `priority`."""
    max_shared_ratio: float = 0.5
    """Most of the pool that may be shared (ref_count >= 2) or pinned."""
    max_pinned_ratio: float = 0.25
    """Most of the pool that may be pinned; at most `max_shared_ratio`."""
    growth_reserve: int = 256
    """Tokens of growth kept free for every running sequence."""
    min_partial_tokens: int = 8
    """Fewest tokens of a partly matching block that are worth a copy."""
    reuse_partial_blocks: bool = True
    """False: full blocks only, for a cache whose blocks cannot be cut (int8/per_channel: a scale is a block's)."""
    ghost_factor: int = 4
    """Evicted hashes remembered, as a multiple of the pool."""

    def __post_init__(self) -> None:
        if self.block_size not in (8, 16, 32, 64):
            raise ValueError(f"block_size: got {self.block_size}, wanted 8, 16, 32 or 64")
        if self.num_blocks < 1:
            raise ValueError(f"num_blocks: got {self.num_blocks}, wanted at least 1")
        if self.policy not in ("lru", "priority"):
            raise ValueError(f"policy: got {self.policy!r}, wanted 'lru' or 'priority'")
        if not 0.0 <= self.max_pinned_ratio <= self.max_shared_ratio <= 1.0:
            raise ValueError(
                f"max_pinned_ratio: got {self.max_pinned_ratio} with max_shared_ratio {self.max_shared_ratio}, "
                "wanted 0 <= max_pinned_ratio <= max_shared_ratio <= 1"
            )
        if self.growth_reserve < 0:
            raise ValueError(f"growth_reserve: got {self.growth_reserve}, wanted at least 0")


class BlockState(StrEnum):
    """What a block of a running sequence is to others."""

    READY = "ready"
    """Computed and indexed: others match it."""
    PENDING = "pending"
    """Indexed and being computed: others may wait for it."""
    PRIVATE = "private"
    """Not indexed: not full yet, or a twin of a block that is cached elsewhere."""


class BlockView(NamedTuple):
    """One block of a sequence at one moment."""

    block_id: int
    state: BlockState
    ref_count: int
    shared: bool
    """ref_count >= 2 or pinned."""
    pinned: bool
    num_tokens: int
    """Computed tokens of the sequence in it."""


class PinRefusal(StrEnum):
    """Why a prompt was not pinned."""

    NOT_CACHED = "not_cached"
    """No full block of it is READY."""
    PINNED_RATIO = "max_pinned_ratio"
    """More of the pool would be pinned than allowed."""
    SHARED_RATIO = "max_shared_ratio"
    """A pinned block counts as shared, and more of the pool would be shared than allowed."""
    RUNNING_REQUEST = "running_request"
    """A request that runs could not reach its `max_tokens` any more, even alone."""


@dataclass(frozen=True, slots=True, eq=False)
class Pin:
    """A claim on the cached blocks of one prompt; give it back to `unpin`."""

    blocks: tuple[int, ...]
    """From the root on."""


@dataclass(frozen=True, slots=True)
class PinResult:
    """A pin, or why there is none."""

    pin: Pin | None
    refusal: PinRefusal | None
    num_blocks: int
    """Blocks pinned or, when refused, blocks that the pin would have needed."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What of a prompt was cached at one moment, why no more, and what was cached in the place of the rest."""

    num_prompt_tokens: int
    num_cached_tokens: int
    """Taken from the cache: full blocks, and the first tokens of one more."""
    num_pending_tokens: int
    """In the blocks behind that a running request was computing."""
    reason: Reason
    """Why no more, see `reasons.main_reason`."""
    block: int
    """The first block that was not there as a whole."""
    num_common_tokens: int
    """Leading tokens that the prompt and the nearest cached chain have in common."""
    common: bytes
    """The last of those, int32 little endian, at most `WINDOW_TOKENS`."""
    prompt_ahead: bytes
    """The prompt's next tokens, likewise; empty: it ends there."""
    cached_ahead: bytes
    """The chain's next tokens, likewise; empty: it ends there."""
    owner: int
    """Number of the sequence that computed the chain's block there, as `admit` was told; 0: nobody's."""
    evictions_ago: int | None
    """How many blocks were evicted after this prompt's first missing one; None: it was not evicted."""
    moment: int
    """Blocks indexed later have a uid that is not below this."""

    @property
    def diverging_token(self) -> int | None:
        """Position of the first token that differs from the nearest cached chain; None: one of them just ends.

        Also None for a chain that goes on alike under a hash that another block has taken.
        """
        sides = {side[:4] for side in (self.prompt_ahead, self.cached_ahead)}
        return self.num_common_tokens if b"" not in sides and len(sides) > 1 else None


@dataclass(frozen=True, slots=True)
class CacheSnapshot:
    """One consistent look at the pool: `total_blocks = free_blocks + cached_blocks + active_blocks`."""

    total_blocks: int
    free_blocks: int
    """Hold nothing."""
    cached_blocks: int
    """READY, no running request refers to them; evicted when needed, unless a pin or a match keeps them."""
    active_blocks: int
    """Referenced by a running request."""
    active_private_blocks: int
    """Of those, by one, and not pinned."""
    active_shared_blocks: int
    """The others of those."""
    shared_blocks: int
    """A property across the states: ref_count >= 2 or pinned."""
    pinned_blocks: int
    """A property across the states."""
    shared_blocks_max: int
    """Since start."""
    pinned_blocks_max: int
    """Since start."""
    shared_blocks_limit: int
    """The sharing cap in blocks."""
    pinned_blocks_limit: int
    """The pin budget in blocks."""
    counters: dict[str, int] = field(default_factory=dict)
    """Monotonic since start: `evicted_blocks, copies, copied_tokens, hash_collisions, share_cap_copies …`."""
