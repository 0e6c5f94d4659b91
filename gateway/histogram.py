"""A histogram that costs next to nothing: what it counts is counted for every request, or every chunk of every stream."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class Histogram(Collector):
    """One series. For one thread: the library's own takes a lock for each of its numbers.

    Args:
        name: of the series.
        meaning: in words.
        buckets: bounds, ascending; a value counts for the first one that it does not exceed.
        registry: that shows it.
    """

    def __init__(self, name: str, meaning: str, *, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        self._name = name
        self._meaning = meaning
        self._bounds = tuple(buckets)
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        """Enter a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield it, at each scrape."""
        bounds = [*map(str, self._bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._meaning, buckets=buckets, sum_value=self._sum)
