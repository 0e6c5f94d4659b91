"""What one run of a load took: the times of its requests, and the figures that are compared.

Loads nothing but the standard library: peers read it in environments of their own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """One answer."""

    ttft: float
    """Seconds from the request to its first token."""
    total: float
    """Seconds from the request to its last token."""
    num_tokens: int
    """Generated."""
    num_prompt_tokens: int = 0

    @property
    def inter_token(self) -> float:
        """Mean seconds between two tokens."""
        return (self.total - self.ttft) / max(1, self.num_tokens - 1)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run; None where a side cannot tell."""

    tokens_per_second: float
    """Generated, over the wall time."""
    wall: float | None = None
    ttft_p50: float | None = None
    ttft_p99: float | None = None
    inter_token: float | None = None
    """Median over the requests."""
    prompt_tokens: int | None = None
    """Of one chat, the mean: sides that read different prompts cannot be compared."""


def figures(timings: Sequence[RequestTiming], wall: float) -> Figures:
    """Reduce a run."""
    firsts = [timing.ttft for timing in timings]
    return Figures(
        tokens_per_second=sum(timing.num_tokens for timing in timings) / wall,
        wall=wall,
        ttft_p50=statistics.median(firsts),
        ttft_p99=quantile(firsts, 0.99),
        inter_token=statistics.median(timing.inter_token for timing in timings),
        prompt_tokens=round(statistics.mean(timing.num_prompt_tokens for timing in timings)),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
