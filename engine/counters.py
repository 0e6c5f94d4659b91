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

    def admit(self, num_prompt_tokens: int, num_cached_tokens: int) -> None:
        """Count a request's first admission."""
        self.prompt_tokens += num_prompt_tokens
        self.cached_tokens += num_cached_tokens
