"""Replay a trace of block ids through the real cache, without a model.

Requests come one after another, so nothing is shared at the same time and no block is PENDING when the next one
starts. Outputs add nothing. Every id counts as one block, also that of a last block that was not full.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from prefixcache.hashing import namespace
from prefixcache.interface import PrefixCacheConfig, Prompt, Scope
from prefixcache.shadow import ShadowIndex

BLOCK_SIZE = 8
_SCOPES = (Scope(namespace({}, scope="public"), 0),)


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a cache of this size and policy would have reused."""

    num_requests: int
    refused_requests: int
    """Larger than the whole pool; their blocks count as misses."""
    total_blocks: int
    hit_blocks: int
    evicted_blocks: int
    share_cap_copies: int

    @property
    def hit_rate(self) -> float | None:
        """Hits by blocks; None for an empty trace."""
        return self.hit_blocks / self.total_blocks if self.total_blocks else None


def replay(
    requests: Iterable[Sequence[int]],
    *,
    num_blocks: int | None = None,
    policy: str = "lru",
    max_shared_ratio: float = 0.5,
) -> ReplayResult:
    """Send the block ids of each request through a cache; `num_blocks` None: no limit on pool and cap.

    No pool is built larger than the trace, which fills it at most once.
    """
    requests = list(requests)
    total_blocks = sum(map(len, requests))
    if num_blocks is None:
        num_blocks, max_shared_ratio = total_blocks, 1.0
    num_blocks = max(1, min(num_blocks, total_blocks))
    shadow = _make_shadow(num_blocks, policy, max_shared_ratio)
    hit_blocks = refused = 0
    for ids in requests:
        if len(ids) > num_blocks:
            refused += 1
        elif ids:
            hit = shadow.serve(_prompt(ids), None)
            assert hit is not None, "alone, a request that is not larger than the pool always fits"
            hit_blocks += hit.num_cached_tokens // BLOCK_SIZE
    counters = shadow.snapshot().counters
    return ReplayResult(
        num_requests=len(requests),
        refused_requests=refused,
        total_blocks=total_blocks,
        hit_blocks=hit_blocks,
        evicted_blocks=counters["evicted_blocks"],
        share_cap_copies=counters["share_cap_copies"],
    )


def _make_shadow(num_blocks: int, policy: str, max_shared_ratio: float) -> ShadowIndex[None]:
    # One block more than asked for holds the extra token of `_prompt`; it is always free again before the next request.
    config = PrefixCacheConfig(
        num_blocks + 1,
        block_size=BLOCK_SIZE,
        policy=policy,
        max_shared_ratio=max_shared_ratio,
        max_pinned_ratio=0.0,
        growth_reserve=0,
    )
    return ShadowIndex[None](config)


def _prompt(ids: Sequence[int]) -> Prompt:
    """One block a distinct id, and a token more, because the last token of a prompt is never taken from the cache."""
    tokens = np.zeros((len(ids), BLOCK_SIZE), dtype=np.int32)
    tokens[:, :2] = np.array(ids, dtype=np.int64).view(np.int32).reshape(-1, 2)
    return Prompt(np.append(tokens.ravel(), np.int32(0)), block_hashes=b"", scopes=_SCOPES, hash_epoch=0)
