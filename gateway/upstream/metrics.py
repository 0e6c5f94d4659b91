"""What is counted of upstreams, beside what every gateway counts."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.metrics import GatewayMetrics
from gateway.upstream.foresight import Foresight
from gateway.upstream.pool import UpstreamPool
from gateway.upstream.usage import AnswerReader


class UpstreamMetrics(Collector):
    """Series of a pool of upstreams.

    Attributes:
        gateway: those that every gateway has.
    """

    def __init__(self, pool: UpstreamPool) -> None:
        self.gateway = GatewayMetrics(has_engine=False)
        self._pool = pool
        self._num_answers: dict[tuple[str, int], int] = {}
        self._num_untold = 0
        self.gateway.watch(self)

    def count_answer(self, upstream: str, status: int) -> None:
        """Count an answer by the status that the upstream gave it."""
        key = (upstream, status)
        self._num_answers[key] = self._num_answers.get(key, 0) + 1

    def count_tokens(self, reader: AnswerReader, first_token_seconds: float | None) -> None:
        """Count what an answer told; what it did not tell is no 0.

        Args:
            reader: of the complete answer.
            first_token_seconds: from the arrival of the request to the first bytes; None: it did not come in pieces.
        """
        if reader.num_prompt_tokens is None:
            self._num_untold += 1
            return
        self.gateway.prompt_tokens.inc(reader.num_prompt_tokens)
        self.gateway.cached_tokens.inc(reader.num_cached_tokens or 0)
        self.gateway.generated_tokens.inc(reader.num_output_tokens or 0)
        if first_token_seconds is not None and reader.num_cached_tokens is not None:
            self.gateway.observe_first_token(
                first_token_seconds,
                num_prompt_tokens=reader.num_prompt_tokens,
                num_cached_tokens=reader.num_cached_tokens,
            )

    def collect(self) -> Iterator[Metric]:
        """Yield the series."""
        up = GaugeMetricFamily("prefixgate_upstream_up", "Whether an upstream answered last", labels=["upstream"])
        for upstream in self._pool.upstreams:
            up.add_metric([upstream.name], int(upstream.is_up))
        yield up
        answers = CounterMetricFamily(
            "prefixgate_upstream_answers", "Answers of upstreams by their status", labels=["upstream", "status"]
        )
        for (name, status), count in self._num_answers.items():
            answers.add_metric([name, str(status)], count)
        yield answers
        running = GaugeMetricFamily(
            "prefixgate_upstream_requests_in_flight", "Requests that an upstream works on", labels=["upstream"]
        )
        for upstream in self._pool.upstreams:
            running.add_metric([upstream.name], upstream.num_in_flight)
        yield running
        yield CounterMetricFamily(
            "prefixgate_upstream_retries", "Requests that went to one more upstream", self._pool.num_retries
        )
        yield CounterMetricFamily(
            "prefixgate_upstream_answers_without_usage", "Answers that told no tokens", self._num_untold
        )


class PredictionMetrics(Collector):
    """Series of what was predicted, and of what became of it."""

    def __init__(self, foresight: Foresight) -> None:
        self._caches = foresight.caches

    def collect(self) -> Iterator[Metric]:
        """Yield the series."""
        for name, text in _SUMS.items():
            family = CounterMetricFamily(f"prefixgate_upstream_{name}", text, labels=["upstream"])
            for upstream, cache in self._caches.items():
                family.add_metric([upstream], getattr(cache.sums, name))
            yield family
        blocks = GaugeMetricFamily("prefixgate_upstream_estimated_blocks", _BLOCKS, labels=["upstream"])
        for upstream, cache in self._caches.items():
            blocks.add_metric([upstream], cache.num_blocks)
        yield blocks


_BLOCKS = "Blocks that an upstream is believed to have cached"
_SUMS = {
    "predicted_tokens": "Tokens that were predicted to be cached, of answers that told how many were",
    "reported_tokens": "Tokens that upstreams took from their caches in the same answers",
    "corrections": "Answers that told of fewer cached tokens than were predicted",
}
