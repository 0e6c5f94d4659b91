"""What a scheduler counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SchedulerCounters:
    """Monotonic since start."""

    preemptions: int = 0
    """Requests that lost their blocks and compute again."""
    prompt_tokens: int = 0
    """Counted once, at the first admission."""
    cached_tokens: int = 0
    """Of those, taken from the cache."""
    generated_tokens: int = 0
    """Sampled."""
