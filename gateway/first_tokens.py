"""How long first tokens took, apart for prompts that were cached and those that were not."""

from __future__ import annotations

from bisect import bisect_left

FIRST_TOKEN_SECONDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Bounds of the buckets that the times are counted in; the last one, beyond them, has none."""
HIT, MISS = "hit", "miss"
_NAMES = (*map(str, FIRST_TOKEN_SECONDS), "+Inf")


def cache_label(num_prompt_tokens: int, num_cached_tokens: int) -> str:
    """Tell a hit from a miss: at least half of a prompt was cached."""
    return HIT if 2 * num_cached_tokens >= num_prompt_tokens else MISS


def bucket_name(seconds: float) -> str:
    """Name the bucket of a time by its bound."""
    return _NAMES[bisect_left(FIRST_TOKEN_SECONDS, seconds)]
