"""How long first tokens took, apart for prompts that were cached and those that were not."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.histogram import quantile

FIRST_TOKEN_SECONDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Bounds of the buckets that the times are counted in; the last bucket, beyond them, has none."""
HIT, MISS = "hit", "miss"
_NAMES = (*map(str, FIRST_TOKEN_SECONDS), "+Inf")


def cache_label(num_prompt_tokens: int, num_cached_tokens: int) -> str:
    """Tell a hit from a miss: at least half of a prompt was cached."""
    return HIT if 2 * num_cached_tokens >= num_prompt_tokens else MISS


def bucket_name(seconds: float) -> str:
    """Name the bucket of a time by its bound."""
    return _NAMES[bisect_left(FIRST_TOKEN_SECONDS, seconds)]


def counts_by_bucket(counts: Mapping[str, float]) -> list[float]:
    """Order counts by the names of their buckets; those of other bounds, which another version had, go where they fit."""
    ordered = [0.0] * len(_NAMES)
    for name, count in counts.items():
        ordered[bisect_left(FIRST_TOKEN_SECONDS, float(name))] += count
    return ordered


def summary(counts: Sequence[float]) -> dict[str, Any]:
    """Print what was counted, by bucket: how many, and how long half of them took at most, and 95 of 100 (seconds)."""
    p50, p95 = (quantile(FIRST_TOKEN_SECONDS, counts, q) for q in (0.5, 0.95))
    return {"count": int(sum(counts)), "p50": p50, "p95": p95}
