"""The time between tokens, which is measured for every chunk of every stream: a histogram that costs next to nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

_NAME = "prefixgate_inter_token_seconds"
_MEANING = "Time per token after the first, once for each batch of tokens"
_BOUNDS = (0.001, 0.002, 0.004, 0.008, 0.015, 0.025, 0.04, 0.06, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0)
"""A value counts for the first bound that it does not exceed."""


class TokenSeconds(Collector):
    """One series. For one thread: the library's own histogram takes a lock for each of three numbers."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Enter a value."""
        self._counts[bisect_left(_BOUNDS, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield it, at each scrape."""
        bounds = [*map(str, _BOUNDS), "+Inf"]
        yield HistogramMetricFamily(
            _NAME, _MEANING, buckets=list(zip(bounds, accumulate(self._counts), strict=True)), sum_value=self._sum
        )
