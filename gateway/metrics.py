"""What is counted and how it is called. Own registry, own names `prefixgate_*`, base units.

Tokens are counted once, at admission. What the engine knows is asked for at each scrape; when it does not answer its
series are left out, for no data is not 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.backends.base import Admission, BackendSnapshot
from gateway.context.metrics import ContextMetrics
from gateway.context.summary_metrics import SummaryMetrics
from gateway.first_tokens import FIRST_TOKEN_SECONDS, HIT, MISS, cache_label
from gateway.histogram import Histogram, LabelledHistogram
from gateway.limits.limits import LIMIT_NAMES
from gateway.storage.store import Store
from prefixcache.interface import PrefixCacheConfig

_TOKEN_SECONDS = (0.001, 0.002, 0.004, 0.008, 0.015, 0.025, 0.04, 0.06, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0)
_REQUEST_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)

_LABELLED_FIELDS = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "parallel_tool_calls",
        "reasoning_effort",
        "verbosity",
        "prediction",
        "web_search_options",
        "cache_salt",
        "min_p",
        "repetition_penalty",
        "chat_template_kwargs",
    }
)
"""Field names worth a label of their own; clients could make up any number of others."""


class GatewayMetrics:
    """All series of one gateway.

    Args:
        has_engine: False: what only our own engine tells is left out.
    """

    def __init__(self, *, has_engine: bool = True) -> None:
        registry = self._registry = CollectorRegistry()
        self.prompt_tokens = Counter(
            "prefixgate_prompt_tokens", "Prompt tokens of admitted requests", registry=registry
        )
        self.cached_tokens = Counter(
            "prefixgate_cached_tokens", "Prompt tokens taken from the prefix cache", registry=registry
        )
        self.saved_seconds = Counter(
            "prefixgate_saved_seconds",
            "Seconds for which the engine would have computed the cached tokens, as it estimates",
            registry=registry if has_engine else None,
        )
        self.generated_tokens = Counter("prefixgate_generated_tokens", "Tokens generated", registry=registry)
        self.aborted_requests = Counter(
            "prefixgate_aborted_requests", "Requests whose client went away", registry=registry
        )
        self.too_long_requests = Counter(
            "prefixgate_too_long_requests",
            "Requests refused for more tokens than the model takes",
            registry=registry if has_engine else None,
        )
        self.first_token_seconds = LabelledHistogram(
            "prefixgate_time_to_first_token_seconds",
            "From the arrival of the request to its first token, by whether at least half of the prompt was cached",
            label="cache",
            values=(HIT, MISS),
            buckets=FIRST_TOKEN_SECONDS,
            registry=registry,
        )
        self.token_seconds = Histogram(
            "prefixgate_inter_token_seconds",
            "Time per token after the first, once for each batch of tokens",
            buckets=_TOKEN_SECONDS,
            registry=registry,
        )
        self.request_seconds = Histogram(
            "prefixgate_request_seconds",
            "From the arrival of the request to the end of its answer, answered in full",
            buckets=_REQUEST_SECONDS,
            registry=registry,
        )
        self.requests = Counter("prefixgate_requests", "Requests answered", ("endpoint", "status"), registry=registry)
        self.prompt_blocks = Counter(
            "prefixgate_prompt_blocks", "Prompt blocks by why they were reused or not", ("reason",), registry=registry
        )
        self._unknown_fields = Counter(
            "prefixgate_unknown_fields", "Body fields that were ignored", ("field",), registry=registry
        )
        self._limited_requests = Counter(
            "prefixgate_limited_requests",
            "Requests refused by a limit of their tenant or key",
            ("limit",),
            registry=registry,
        )
        for name in LIMIT_NAMES:
            self._limited_requests.labels(name)  # 0, until there is one
        context_registry = registry if has_engine else CollectorRegistry()
        self.context = ContextMetrics(context_registry)
        self.summaries = SummaryMetrics(context_registry)
        self._engine = _EngineCollector()
        registry.register(self._engine)

    def count_admission(self, admission: Admission) -> None:
        """Count what was reused; called once for each admitted request."""
        self.prompt_tokens.inc(admission.num_prompt_tokens)
        self.cached_tokens.inc(admission.num_cached_tokens)
        self.saved_seconds.inc(admission.saved_seconds)
        for reason, num_blocks in admission.reasons.items():
            self.prompt_blocks.labels(reason).inc(num_blocks)

    def observe_first_token(self, seconds: float, *, num_prompt_tokens: int, num_cached_tokens: int) -> None:
        """Enter how long a first token took, from the arrival of the request."""
        self.first_token_seconds.labels(cache_label(num_prompt_tokens, num_cached_tokens)).observe(seconds)

    def count_request(self, endpoint: str, status: int) -> None:
        """Count an answer; `endpoint` is one of a few names."""
        self.requests.labels(endpoint, str(status)).inc()

    def count_unknown_fields(self, names: Iterable[str]) -> None:
        """Count ignored fields of a body."""
        for name in names:
            self._unknown_fields.labels(name if name in _LABELLED_FIELDS else "other").inc()

    def count_limited(self, limit: str) -> None:
        """Count a request that a limit refused, by the limit's name."""
        self._limited_requests.labels(limit).inc()

    def watch_store(self, store: Store) -> None:
        """Show how the database and the request log are, at each scrape."""
        self._registry.register(_StoreCollector(store))

    def watch(self, collector: Collector) -> None:
        """Show the series of a part of the gateway, at each scrape."""
        self._registry.register(collector)

    def exposition(self, snapshot: BackendSnapshot | None, block_size: int | None = None) -> bytes:
        """Print all series as text.

        Args:
            snapshot: the engine now; None: it did not answer.
            block_size: tokens of a block in the running cache; None: the engine does not run.
        """
        self._engine.snapshot = snapshot
        self._engine.block_size = block_size
        return generate_latest(self._registry)


def counted(counter: Counter) -> dict[tuple[str, ...], float]:
    """Read a counter as the next scrape would: the values of its labels -> its value."""
    samples = (sample for family in counter.collect() for sample in family.samples)
    return {tuple(sample.labels.values()): sample.value for sample in samples if sample.name.endswith("_total")}


class _EngineCollector(Collector):
    """Series of the snapshot that was put in last."""

    def __init__(self) -> None:
        self.snapshot: BackendSnapshot | None = None
        self.block_size: int | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield only what is known."""
        if self.block_size is not None:
            yield from _floor(self.block_size)
        snapshot = self.snapshot
        if snapshot is None:
            return
        yield from _blocks(snapshot)
        for name, meaning, by_lane in (
            ("running", "Answers that are computed, by the lane of their prompt", snapshot.running),
            ("waiting", "Requests before admission", snapshot.waiting),
        ):
            requests = GaugeMetricFamily(f"prefixgate_requests_{name}", meaning, labels=["lane"])
            for lane, number in by_lane.items():
                requests.add_metric([lane], number)
            yield requests
        events = CounterMetricFamily(
            "prefixgate_engine_events", "Counters of the engine since its start", labels=["event"]
        )
        for name, value in snapshot.counters.items():
            events.add_metric([name], value)
        yield events


class _StoreCollector(Collector):
    """Series of the database, from what its users last saw of it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        """Yield what is known without asking the database."""
        log = self._store.log
        is_up = int(self._store.watcher.is_up)
        yield GaugeMetricFamily("prefixgate_database_up", "Whether the database answered last", is_up)
        yield GaugeMetricFamily("prefixgate_request_log_waiting_rows", "Rows that are not written yet", log.num_waiting)
        yield CounterMetricFamily("prefixgate_request_log_written_rows", "Rows written", log.num_written)
        yield CounterMetricFamily("prefixgate_request_log_dropped_rows", "Rows never written", log.num_dropped)
        dropped = log.minutes.num_dropped
        yield CounterMetricFamily(
            "prefixgate_dropped_minute_sums", "Additions to sums by minute never written", dropped
        )


def _floor(block_size: int) -> Iterator[Metric]:
    """What a hit takes at least: without it nobody can tell a short prompt from a cache that fails."""
    yield GaugeMetricFamily("prefixgate_block_size_tokens", "Tokens of a block of the cache", block_size)
    min_tokens = PrefixCacheConfig(num_blocks=1).min_partial_tokens  # the worker builds its cache with this default
    yield GaugeMetricFamily("prefixgate_min_reuse_tokens", "Fewest common tokens that are reused", min_tokens)


def _blocks(snapshot: BackendSnapshot) -> Iterator[Metric]:
    by_state = GaugeMetricFamily("prefixgate_blocks", "Blocks of the pool by state", labels=["state"])
    for state in ("free", "cached", "active_private", "active_shared"):
        if (count := snapshot.blocks.get(f"{state}_blocks")) is not None:
            by_state.add_metric([state], count)
    yield by_state
    for name, meaning in (
        ("total_blocks", "Blocks of the pool"),
        ("shared_blocks", "Blocks used by several requests, or pinned"),
        ("pinned_blocks", "Blocks kept for registered prompts"),
        ("shared_blocks_limit", "Most blocks that the sharing cap allows"),
        ("pinned_blocks_limit", "Most blocks that may be pinned"),
        ("shared_blocks_max", "Most shared blocks since the engine's start"),
        ("pinned_blocks_max", "Most pinned blocks since the engine's start"),
    ):
        if name in snapshot.blocks:
            yield GaugeMetricFamily(f"prefixgate_{name}", meaning, snapshot.blocks[name])
