"""Histograms that cost next to nothing: what they count is counted for every request, or every chunk of every stream."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class Buckets:
    """What was observed. For one thread: the library's own takes a lock for each of its numbers.

    Attributes:
        counts: values by bucket; the last one has no bound.

    Args:
        bounds: of all others, ascending; a value counts for the first one that it does not exceed.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.counts = [0] * (len(bounds) + 1)
        self._bounds = tuple(bounds)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Enter a value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def show(self, family: HistogramMetricFamily, labels: Sequence[str] = ()) -> None:
        """Add them to what a scrape gets."""
        bounds = [*map(str, self._bounds), "+Inf"]
        family.add_metric(labels, list(zip(bounds, accumulate(self.counts), strict=True)), self._sum)


class Histogram(Buckets, Collector):
    """One series.

    Args:
        name: of the series.
        meaning: in words.
        buckets: see `Buckets`.
        registry: that shows it.
    """

    def __init__(self, name: str, meaning: str, *, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        super().__init__(buckets)
        self._name = name
        self._meaning = meaning
        registry.register(self)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield it, at each scrape."""
        family = HistogramMetricFamily(self._name, self._meaning)
        self.show(family)
        yield family


class LabelledHistogram(Collector):
    """A series for each value of a label, of which all are known before.

    Args:
        name: of all series.
        meaning: in words.
        label: its name.
        values: that it may have.
        buckets: see `Buckets`.
        registry: that shows them.
    """

    def __init__(
        self,
        name: str,
        meaning: str,
        *,
        label: str,
        values: Iterable[str],
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._meaning = meaning
        self._label = label
        self._series = {value: Buckets(buckets) for value in values}
        registry.register(self)

    def labels(self, value: str) -> Buckets:
        """Return the series of a value."""
        return self._series[value]

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield all of them, at each scrape."""
        family = HistogramMetricFamily(self._name, self._meaning, labels=[self._label])
        for value, series in self._series.items():
            series.show(family, [value])
        yield family


def quantile(bounds: Sequence[float], counts: Sequence[float], q: float) -> float | None:
    """Estimate the value that a share `q` of all values does not exceed; None: there are no values.

    Within a bucket values are taken to be spread evenly, from its lower bound on, which is 0 for the first one. What lies
    in the last bucket is only known to be above the highest bound, which is returned then.

    Args:
        bounds: ascending, above 0.
        counts: values by bucket, one more than bounds.
        q: from 0 to 1.

    Source: Prometheus, `histogram_quantile`.
    """
    total = sum(counts)
    if not total:
        return None
    rank, below, low = q * total, 0.0, 0.0
    for high, count in zip(bounds, counts[:-1], strict=True):
        if count and below + count >= rank:
            return low + (high - low) * max(0.0, rank - below) / count
        below, low = below + count, high
    return bounds[-1]
