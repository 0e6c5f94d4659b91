"""Sums of what was lost between the possible and the actual, by reason and by region, and the requests that lost most.

For each request possible - lost = cached. What was cached was possible, whoever brought it: a warm-up, or a request before the
gateway's time. So nothing here is below 0, and all sums only grow.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import accumulate
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.accounting.maximum import Maximum, Possible
from gateway.backends.base import Admission
from gateway.explain.cuts import TEXT_REASONS
from gateway.explain.places import Kind
from gateway.explain.records import PromptRecord
from prefixcache.interface import PrefixCacheConfig, Reason

RULE_OFF = "rule_off"
"""A reason: a safe rule that is not on would have brought it."""
UNEXPLAINED = "unexplained"
"""A reason: the engine says that nothing was missing."""
UNKNOWN = "unknown"
"""A region."""

MAX_MISSES = 1000
_NOTHING_MISSED = frozenset({Reason.HIT, Reason.COPIED, Reason.SHARE_CAP})


class MinuteSums(Protocol):
    """Where sums are kept by the minute."""

    def add(self, sums: Mapping[tuple[str, str], float]) -> None:
        """Add to sums of this minute, by name and label; from any thread."""
        ...


@dataclass(frozen=True, slots=True)
class Miss:
    """A request that lost something."""

    request_id: str
    completion_id: str
    at: float
    """Seconds since 1970."""
    tenant: str
    reason: str
    region: str
    lost_tokens: int
    prompt_tokens: int


@dataclass(slots=True)
class Sums:
    """Tokens of the sample since the gateway's start."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    possible_tokens: int = 0


class Losses(Collector):
    """Of one gateway; counted in one thread, read in any.

    Args:
        minutes: where they are kept, too.
        clock: seconds since 1970.
    """

    def __init__(self, minutes: MinuteSums | None = None, clock: Callable[[], float] = time.time) -> None:
        self.sums = Sums()
        self.lost: Counter[tuple[str, str]] = Counter()
        """(reason, region) -> tokens."""
        self.room: Counter[int] = Counter()
        """Blocks, a power of two -> tokens that were evicted and would have been kept in a pool larger by as many."""
        self.maximum: Maximum | None = None
        """None: nothing was counted so far."""
        self._misses: deque[Miss] = deque(maxlen=MAX_MISSES)
        self._minutes = minutes
        self._clock = clock

    def maximum_of(self, config: PrefixCacheConfig) -> Maximum:
        """Return the cache without a limit; the first time it is built, for a pool scaled to the sample."""
        self.maximum = self.maximum or Maximum(config)
        return self.maximum

    def count(self, record: PromptRecord, admission: Admission, possible: Possible) -> None:
        """Take a request of the sample."""
        prompt, cached = admission.num_prompt_tokens, admission.num_cached_tokens
        most = max(possible.num_tokens, cached)
        self.sums.prompt_tokens += prompt
        self.sums.cached_tokens += cached
        self.sums.possible_tokens += most
        sums = {
            ("sampled_prompt_tokens", ""): prompt,
            ("sampled_cached_tokens", ""): cached,
            ("possible_tokens", ""): most,
        }
        if lost := most - cached:
            why, region = self._lose(record, admission, possible, lost)
            sums["lost_tokens", f"{why}:{region}"] = lost
        if self._minutes is not None:
            self._minutes.add(sums)

    def top(self, since: float, until: float, size: int) -> Sequence[Miss]:
        """Give the requests of a time that lost most, of the last ones that lost anything."""
        return nlargest(size, (miss for miss in self._misses.copy() if since <= miss.at < until), _lost_tokens)

    def collect(self) -> Iterator[Metric]:
        """Yield the series, once there is something to tell."""
        if self.maximum is None:
            return
        cached = "Prompt tokens of the sample taken from the prefix cache"
        possible = "Prompt tokens of the sample that a cache without a limit would have given with all safe rules on"
        yield CounterMetricFamily("prefixgate_sampled_cached_tokens", cached, self.sums.cached_tokens)
        yield CounterMetricFamily("prefixgate_possible_tokens", possible, self.sums.possible_tokens)
        lost = CounterMetricFamily("prefixgate_lost_tokens", _LOST, labels=("reason", "region"))
        for labels, tokens in list(self.lost.items()):
            lost.add_metric(labels, tokens)
        yield lost
        evicted = "Blocks that the cache without a limit evicted; above 0 more may have been possible"
        yield CounterMetricFamily("prefixgate_maximum_evicted_blocks", evicted, self.maximum.evicted_blocks)

    def room_needed(self) -> list[tuple[int, int]]:
        """Give sizes by which a pool could be larger, in blocks, each with the evicted tokens that it would have kept.

        A block that was evicted before n others would have been kept by about n blocks more.
        """
        sizes = sorted(self.room.copy().items())
        return list(zip((blocks for blocks, _ in sizes), accumulate(tokens for _, tokens in sizes), strict=True))

    def _lose(self, record: PromptRecord, admission: Admission, possible: Possible, lost: int) -> tuple[str, str]:
        region, reason = _region_of(record), Reason(admission.reason)
        if reason in TEXT_REASONS and (possible.is_parted or lost <= possible.num_dropped):
            why = RULE_OFF
        else:
            why = UNEXPLAINED if reason in _NOTHING_MISSED else reason.value
        self.lost[why, region] += lost
        if why == Reason.EVICTED and admission.evictions_ago is not None:
            self.room[1 << admission.evictions_ago.bit_length()] += lost
        self._misses.append(
            Miss(
                request_id=record.request_id,
                completion_id=record.completion_id,
                at=self._clock(),
                tenant=record.tenant_id,
                reason=why,
                region=region,
                lost_tokens=lost,
                prompt_tokens=record.num_prompt_tokens,
            )
        )
        return why, region


_LOST = "Tokens of the sample that were possible and not cached"


def _region_of(record: PromptRecord) -> str:
    place = record.place
    return UNKNOWN if place is None or place.kind is Kind.TURN else place.kind.value


def _lost_tokens(miss: Miss) -> int:
    return miss.lost_tokens
