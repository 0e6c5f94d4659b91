"""A gateway at a glance: the very counters that `/metrics` prints, the engine's blocks, and what is wrong.

Nothing is counted here a second time. What is not known is None, never 0. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

from prometheus_client import Counter

from gateway.accounting.losses import Losses
from gateway.accounting.savings import Savings
from gateway.backends.base import Backend, BackendSnapshot, BackendUnavailableError
from gateway.backends.snapshot import snapshot_in_time
from gateway.first_tokens import HIT, MISS, summary
from gateway.lately import SAMPLE_SECONDS, Lately, Sample
from gateway.metrics import GatewayMetrics, counted
from gateway.normalize.rule import Mode
from gateway.problems import Facts, problems
from gateway.prompts.condition import PromptCondition
from gateway.storage.store import Store
from gateway.version import VERSION
from prefixcache.interface import Reason

logger = logging.getLogger(__name__)

Json = dict[str, Any]

_LIMITED = 429
_FIRST_ERROR = 500
_BLOCKS = (
    "total_blocks",
    "free_blocks",
    "cached_blocks",
    "active_private_blocks",
    "active_shared_blocks",
    "pinned_blocks",
    "shared_blocks",
    "shared_blocks_limit",
    "pinned_blocks_limit",
)


@dataclass(frozen=True, slots=True)
class Look:
    """At an engine that serves."""

    snapshot: BackendSnapshot
    block_size: int
    device: str | None
    block_bytes: int | None = None
    """What a block takes of the memory; None: nobody knows."""


class Behind(Protocol):
    """What answers behind a gateway."""

    mode: Literal["engine", "upstream"]
    model: str | None

    def state(self) -> str:
        """Say how it is."""
        ...

    async def look(self) -> Look | None:
        """Look at the engine; None: there is none, or it does not answer."""
        ...

    def facts(self, look: Look | None) -> Facts:
        """Begin the facts with those of its own."""
        ...


class EngineBehind:
    """An engine of the gateway's own."""

    mode: Literal["engine", "upstream"] = "engine"

    def __init__(self, backend: Backend, model: str) -> None:
        self.model: str | None = model
        self._backend = backend

    def state(self) -> str:
        """Say how it is."""
        return self._backend.state()

    async def look(self) -> Look | None:
        """Ask it."""
        with suppress(BackendUnavailableError):
            snapshot, model = await snapshot_in_time(self._backend), self._backend.model_info()
            device, token_bytes = model.details.get("device"), model.details.get("kv_bytes_per_token")
            return Look(
                snapshot,
                model.block_size,
                None if device is None else str(device),
                None if token_bytes is None else int(token_bytes) * model.block_size,
            )
        return None

    def facts(self, look: Look | None) -> Facts:
        """Tell of its state and its blocks."""
        facts = Facts(engine_state=self.state(), engine_answers=look is not None)
        if look is None:
            return facts
        blocks = look.snapshot.blocks
        return replace(
            facts,
            shared_blocks=blocks.get("shared_blocks", 0),
            shared_blocks_limit=blocks.get("shared_blocks_limit", 0),
            waiting_requests=look.snapshot.num_waiting,
        )


class Overview:
    """Of one gateway.

    Args:
        behind: what answers.
        metrics: counts the requests and their tokens.
        savings: of the accounting; None: there is none.
        losses: of the accounting; None: what was possible is not counted.
        store: None: nothing is kept.
        prompts: tells how the registered prompts are, at a time in seconds since 1970.
        has_context_policy: tells whether it is on for anybody.
        template_faults: what about the chat template loses the cache.
        clock: seconds since 1970.
        ticks: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        behind: Behind,
        metrics: GatewayMetrics,
        *,
        savings: Savings | None = None,
        losses: Losses | None = None,
        store: Store | None = None,
        prompts: Callable[[float], list[PromptCondition]] = lambda _: [],
        has_context_policy: Callable[[], bool] = lambda: False,
        template_faults: tuple[str, ...] = (),
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._behind = behind
        self._metrics = metrics
        self._savings = savings
        self._losses = losses
        self._store = store
        self._prompts = prompts
        self._has_context_policy = has_context_policy
        self._template_faults = template_faults
        self._clock = clock
        self._ticks = ticks
        self._started_at = clock()
        self._lately = Lately()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to remember the last minutes, which takes a look every few seconds."""
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def read(self) -> Json:
        """Look at everything now; times are in seconds since 1970."""
        look = await self._behind.look()
        store, metrics = self._store, self._metrics
        prompt, cached = _total(metrics.prompt_tokens), _total(metrics.cached_tokens)
        return {
            "object": "overview",
            "at": self._clock(),
            "started_at": self._started_at,
            "version": VERSION,
            "model": self._behind.model,
            "mode": self._behind.mode,
            "engine": {"state": self._behind.state()},
            "tokens": {
                "prompt": prompt,
                "cached": cached,
                "generated": _total(metrics.generated_tokens),
                "hit_rate": _share(cached, prompt),
            },
            "maximum": None if self._savings is None else _maximum(self._savings, self._losses),
            "saved": {
                "tokens": cached,
                "seconds": counted(metrics.saved_seconds)[()] if self._behind.mode == "engine" else None,
                "device": look.device if look else None,
            },
            "first_token_seconds": {
                label: summary(metrics.first_token_seconds.labels(label).counts) for label in (HIT, MISS)
            },
            "cache": None if look is None else _cache(look),
            "context": self._context(),
            "requests": None if look is None else _lanes(look.snapshot),
            "num_logged_requests": None if store is None else store.log.num_written + store.log.num_waiting,
            "problems": [asdict(problem) for problem in problems(self._facts(look))],
        }

    def _context(self) -> Json | None:
        """Sum up what the context policy did; None: it is off, and always was."""
        metrics = self._metrics.context
        mode = Mode.ON.value
        num_requests = _of_mode(metrics.requests, mode)
        if not num_requests and not self._has_context_policy():
            return None
        return {
            "requests": num_requests,
            "edited_requests": _of_mode(metrics.edited_requests, mode),
            "cuts": _of_mode(metrics.cuts, mode),
            "cleared_tokens": _of_mode(metrics.cleared_tokens, mode) - _of_mode(metrics.added_tokens, mode),
        }

    async def _watch(self) -> None:
        while True:
            try:
                self._lately.note(self._sample(await self._behind.look()))
            except Exception:  # without samples, what is wrong would stay unsaid
                logger.exception("looking at the gateway failed")
            await asyncio.sleep(SAMPLE_SECONDS)

    def _sample(self, look: Look | None) -> Sample:
        requests = counted(self._metrics.requests).items()
        statuses = [(int(status), count) for (path, status), count in requests if path.startswith("/v1/")]
        blocks = counted(self._metrics.prompt_blocks)
        counts = {
            "answers": int(sum(count for _, count in statuses)),
            "failed_answers": int(sum(count for status, count in statuses if status >= _FIRST_ERROR)),
            "context_requests": _of_mode(self._metrics.context.edited_requests, Mode.ON.value),
            "context_cuts": _of_mode(self._metrics.context.cuts, Mode.ON.value),
            "too_long_answers": _total(self._metrics.too_long_requests),
            "limited_answers": int(sum(count for status, count in statuses if status == _LIMITED)),
            "looked_up_blocks": int(sum(blocks.values())),
            "evicted_misses": int(blocks.get((Reason.EVICTED.value,), 0)),
            "unsampled_drops": self._savings.size.dropped_requests if self._savings else 0,
        }
        if look is not None:
            counts["share_cap_copies"] = look.snapshot.counters.get("share_cap_copies", 0)
        return Sample(self._ticks(), counts, look.snapshot.num_waiting if look else None)

    def _facts(self, look: Look | None) -> Facts:
        sample = self._sample(look)
        grown: Mapping[str, Any] = self._lately.growth(sample)
        facts = replace(
            self._behind.facts(look),
            waiting_seconds=self._lately.waiting_seconds(sample),
            prompts=self._prompts(self._clock()),
            has_context_policy=self._has_context_policy(),
            template_faults=self._template_faults,
            **grown,
        )
        if self._store is not None:
            log, is_up = self._store.log, self._store.watcher.is_up
            facts = replace(facts, database_is_up=is_up, waiting_rows=log.num_waiting, dropped_rows=log.num_dropped)
        if self._savings is not None:
            size = self._savings.size
            facts = replace(
                facts,
                sampling=self._savings.sampling,
                seen_requests=size.requests,
                sampled_requests=size.sampled_requests,
            )
        return facts


def _total(counter: Counter) -> int:
    return int(counted(counter)[()])


def _of_mode(counter: Counter, mode: str) -> int:
    return int(sum(value for (counted_mode, *_), value in counted(counter).items() if counted_mode == mode))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _maximum(savings: Savings, losses: Losses | None) -> Json:
    """What could have been reused of the sample, were the pool without limit and all safe rules on."""
    size = {"sampling": savings.sampling, "prompt_tokens": savings.size.sampled_prompt_tokens}
    names = ("cached_tokens", "possible_tokens", "hit_rate", "max_hit_rate", "evicted_blocks")
    if losses is None or losses.maximum is None:
        return {**size, **dict.fromkeys(names)}
    sums = losses.sums
    rates = (_share(sums.cached_tokens, sums.prompt_tokens), _share(sums.possible_tokens, sums.prompt_tokens))
    values = (sums.cached_tokens, sums.possible_tokens, *rates, losses.maximum.evicted_blocks)
    return {**size, **dict(zip(names, values, strict=True))}


def _lanes(snapshot: BackendSnapshot) -> Json:
    return {"running": dict(snapshot.running), "waiting": dict(snapshot.waiting)}


def _cache(look: Look) -> Json:
    blocks, counters = look.snapshot.blocks, look.snapshot.counters
    others = {
        "block_size": look.block_size,
        "block_bytes": look.block_bytes,
        "evicted_blocks": counters.get("evicted_blocks"),
    }
    return {name: blocks.get(name) for name in _BLOCKS} | others
