"""The real scheduler and prefix cache in front of a runner that computes nothing, on a clock that only counts.

A step takes what a `StepCost` says, so a minute of load is simulated in a second or so and every run gives the same
figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.batch import SchedulerOutput, StepOutput
from engine.config import SchedulerConfig
from engine.messages import SamplingParams
from engine.request import Request
from engine.scheduler import Scheduler
from engine.step_cost import StepCost
from prefixcache import PrefixCache, PrefixCacheConfig, Prompt, Scope, hash_blocks, namespace

BLOCK_SIZE = 32
SCOPES = (Scope(namespace({"model": "simulation"}, scope="public"), 0),)


@dataclass(frozen=True)
class Arrival:
    """One request that will come."""

    seconds: float
    kind: str
    num_own_tokens: int
    max_tokens: int
    num_shared_tokens: int = 0
    """Of the prompt, in common with all others of this kind."""
    tenant: str = ""
    n: int = 1


@dataclass
class Outcome:
    """What came of a load."""

    first_token: dict[str, list[float]] = field(default_factory=dict)
    """kind -> seconds from arrival to the first token, by request."""
    gaps: list[float] = field(default_factory=list)
    """Seconds between two tokens of one answer."""
    prefilled: dict[str, int] = field(default_factory=dict)
    """kind -> prompt tokens computed."""
    finished: dict[str, list[float]] = field(default_factory=dict)
    """kind -> when each answer ended."""
    seconds: float = 0.0
    num_steps: int = 0
    scheduler_seconds: float = 0.0
    preemptions: int = 0

    def ttft(self, kind: str, quantile: float) -> float:
        """Seconds to the first token."""
        return float(np.quantile(self.first_token[kind], quantile))


def simulate(
    load: Sequence[Arrival],
    config: SchedulerConfig,
    *,
    num_blocks: int = 4000,
    truth: StepCost | None = None,
    scheduler_cost: StepCost | None = None,
    growth_reserve: int = 256,
    until: float = float("inf"),
) -> Outcome:
    """Serve a load to its end, or `until` a time."""
    truth = truth or StepCost(fits=False)
    cache = PrefixCache(PrefixCacheConfig(num_blocks, block_size=BLOCK_SIZE, growth_reserve=growth_reserve))
    scheduler = Scheduler(config, cache, eos_token_ids=frozenset(), cost=scheduler_cost)
    coming = sorted(enumerate(load), key=lambda pair: pair[1].seconds)
    arrivals = {str(number): arrival for number, arrival in coming}
    last_token: dict[str, float] = {}
    outcome = Outcome()
    now = 0.0
    while coming or scheduler.num_running or scheduler.num_waiting:
        if not scheduler.num_running and not scheduler.num_waiting:
            now = max(now, coming[0][1].seconds)
        if now >= until:
            break
        while coming and coming[0][1].seconds <= now:
            number, arrival = coming.pop(0)
            scheduler.add(make_request(number, arrival))
        step = scheduler.schedule()
        assert step.requests, "the scheduler does not move"
        seconds = step_seconds(truth, step)
        now += seconds
        outcome.num_steps += 1
        sampled = StepOutput({part.request_id: 1 for part in step.requests if part.sample})
        for output in scheduler.update(step, sampled, seconds=seconds):
            arrival, key = arrivals[output.request_id], f"{output.request_id}/{output.index}"
            if key in last_token:
                outcome.gaps.append(now - last_token[key])
            else:
                outcome.first_token.setdefault(arrival.kind, []).append(now - arrival.seconds)
            last_token[key] = now
            if output.finish_reason:
                outcome.finished.setdefault(arrival.kind, []).append(now)
        for part in step.requests:
            if part.num_new_tokens > 1:
                kind = arrivals[part.request_id.partition("/")[0]].kind
                outcome.prefilled[kind] = outcome.prefilled.get(kind, 0) + part.num_new_tokens
    outcome.seconds = now
    outcome.preemptions = scheduler.counters.preemptions
    return outcome


def step_seconds(truth: StepCost, step: SchedulerOutput) -> float:
    """What a step takes."""
    seconds = truth.fixed
    for part in step.requests:
        if part.num_new_tokens == 1:
            seconds += truth.decode_seconds(part.num_computed_tokens)
        else:
            seconds += truth.chunk_seconds(part.num_new_tokens, part.num_computed_tokens)
    return seconds


def make_request(number: int, arrival: Arrival) -> Request:
    """A prompt of its own behind what its kind shares."""
    own = np.random.default_rng(number).integers(1, 50_000, arrival.num_own_tokens, dtype=np.int32)
    shared = np.random.default_rng(sum(arrival.kind.encode())).integers(
        1, 50_000, arrival.num_shared_tokens, dtype=np.int32
    )
    tokens = np.concatenate((shared, own))
    hashes = hash_blocks(tokens, block_size=BLOCK_SIZE, scopes=SCOPES, seed=0)
    sampling = SamplingParams(max_tokens=arrival.max_tokens, n=arrival.n)
    return Request(str(number), Prompt(tokens, hashes, SCOPES, 0), sampling, seed=number, tenant=arrival.tenant)


def poisson(
    rate: float, seconds: float, kind: str, num_tokens: int, max_tokens: int, *, seed: int, tenant: str = ""
) -> Iterable[Arrival]:
    """Requests at random times."""
    random = np.random.default_rng(seed)
    now = 0.0
    while (now := now + float(random.exponential(1 / rate))) < seconds:
        yield Arrival(now, kind, num_tokens, max_tokens, tenant=tenant)


def steady(every: float, seconds: float, kind: str, num_tokens: int, max_tokens: int) -> Iterable[Arrival]:
    """Requests at equal distances."""
    now = 0.0
    while now < seconds:
        yield Arrival(now, kind, num_tokens, max_tokens)
        now += every
