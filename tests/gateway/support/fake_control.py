"""The part of the fake backend that is asked about its cache: a set of block hashes, pins by handle, two options."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, repeat

import numpy as np

from gateway.backends.base import Admission, BackendUnavailableError, RequestRejectedError
from gateway.backends.control import (
    BlockInfo,
    CacheOptions,
    ExplainedRequest,
    HashedPrompt,
    PinOutcome,
    RequestBlocks,
    WarmUp,
)
from prefixcache.interface import WINDOW_TOKENS, Explanation, Reason, TokenArray

HASH_BYTES = 16
BLOCK_SIZE = 8
TOTAL_BLOCKS = 1000


@dataclass
class FakeControl:
    """What a test may set, and what it may look at afterwards."""

    is_up: bool = True
    live: set[str] = field(default_factory=set)
    """Waiting or running."""
    warm_refusal: str | None = None
    warm_delay_seconds: float = 0.0
    pinned_blocks_limit: int = 250
    options: CacheOptions = field(default_factory=lambda: CacheOptions(0.5, 256))
    warmed: list[HashedPrompt] = field(default_factory=list)
    pins: dict[str, set[bytes]] = field(default_factory=dict)
    priorities: dict[str, tuple[int, float | None]] = field(default_factory=dict)
    """Handle -> level and seconds; none ever expires."""
    prioritized: dict[str, HashedPrompt] = field(default_factory=dict)
    """The same, with what is covered."""
    explained: dict[str, ExplainedRequest] = field(default_factory=dict)
    """By completion; a test may enter another one."""
    _last_id: str | None = None
    _last_prompt: TokenArray = field(default_factory=lambda: np.zeros(0, np.int32))
    _cached: dict[bytes, bytes] = field(default_factory=dict)
    """The namespace of each block hash."""
    _admissions: dict[str, Admission] = field(default_factory=dict)

    def forget(self) -> None:
        """As a new process does."""
        self.pins.clear()
        self.priorities.clear()
        self.prioritized.clear()
        self._cached.clear()

    async def warm(self, prompt: HashedPrompt) -> WarmUp:
        self._check_up()
        await asyncio.sleep(self.warm_delay_seconds)
        self.warmed.append(prompt)
        if self.warm_refusal is None:
            self._cached |= namespaces_of(prompt)
        return WarmUp(self._num_cached(prompt) * BLOCK_SIZE, self.warm_refusal)

    async def pin(self, handle: str, prompt: HashedPrompt) -> PinOutcome:
        self._check_up()
        keys = set(keys_of(prompt)[: self._num_cached(prompt)])
        others = set().union(*(pinned for name, pinned in self.pins.items() if name != handle))
        refusal = None
        if not keys:
            refusal = "not_cached"
        elif len(others | keys) > self.pinned_blocks_limit:
            refusal = "max_pinned_ratio"
        else:
            self.pins[handle] = keys
        num_pinned = len(set().union(*self.pins.values()))
        return PinOutcome(refusal, len(keys), num_pinned, self.pinned_blocks_limit, num_pinned, TOTAL_BLOCKS // 2)

    async def unpin(self, handle: str) -> bool:
        self._check_up()
        return self.pins.pop(handle, None) is not None

    async def prioritize(self, handle: str, prompt: HashedPrompt, *, level: int, seconds: float | None = None) -> int:
        self._check_up()
        if level < 1:
            raise RequestRejectedError(f"level: got {level}, wanted at least 1", param="level")
        self.priorities[handle] = (level, seconds)
        self.prioritized[handle] = prompt
        return self._num_cached(prompt)

    async def end_priority(self, handle: str) -> bool:
        self._check_up()
        self.prioritized.pop(handle, None)
        return self.priorities.pop(handle, None) is not None

    async def set_cache_options(
        self, *, max_shared_ratio: float | None = None, growth_reserve: int | None = None
    ) -> CacheOptions:
        self._check_up()
        given = {"max_shared_ratio": max_shared_ratio, "growth_reserve": growth_reserve}
        self.options = replace(self.options, **{name: value for name, value in given.items() if value is not None})
        return self.options

    async def blocks_of(self, request_id: str) -> RequestBlocks | None:
        self._check_up()
        admission = self._admissions.get(request_id)
        if admission is None:
            return None
        reasons = [reason for reason, count in admission.reasons.items() for _ in range(count)]
        return RequestBlocks(
            status="running" if request_id in self.live else "ended",
            num_prompt_tokens=admission.num_prompt_tokens,
            num_cached_tokens=admission.num_cached_tokens,
            reasons=admission.reasons,
            blocks=[
                BlockInfo(number, "ready", 1, shared=False, pinned=False, num_tokens=BLOCK_SIZE, reason=reason)
                for number, reason in enumerate(reasons)
            ],
        )

    async def blocks_by_namespace(self) -> Mapping[bytes, int]:
        self._check_up()
        return Counter(self._cached.values())

    async def explain(self, prompt: HashedPrompt, *, reveal_other_scopes: bool = False) -> Explanation:
        self._check_up()
        return self._explanation(prompt)

    async def explain_request(self, request_id: str, *, reveal_other_scopes: bool = False) -> ExplainedRequest | None:
        self._check_up()
        return self.explained.get(request_id)

    def _explanation(self, prompt: HashedPrompt) -> Explanation:
        """Compare with the newest prompt that was served; a tenant is not looked at."""
        num_blocks = self._num_cached(prompt)
        is_whole = num_blocks == len(keys_of(prompt))
        tokens, other = prompt.token_ids, self._last_prompt
        num_common = 0
        while num_common < min(len(tokens), len(other)) and tokens[num_common] == other[num_common]:
            num_common += 1
        windows = (tokens[max(0, num_common - WINDOW_TOKENS) : num_common], tokens[num_common:], other[num_common:])
        common, ahead, cached = (window[:WINDOW_TOKENS].tobytes() for window in windows)
        return Explanation(
            num_prompt_tokens=len(tokens),
            num_cached_tokens=num_blocks * BLOCK_SIZE,
            num_pending_tokens=0,
            reason=Reason.HIT if is_whole else Reason.DIVERGED if num_blocks else Reason.NEVER_CACHED,
            block=num_blocks,
            num_common_tokens=num_common,
            common=common,
            prompt_ahead=ahead,
            cached_ahead=cached,
            owner=0,
            evictions_ago=None,
            moment=0,
        )

    def _check_up(self) -> None:
        if not self.is_up:
            raise BackendUnavailableError("the engine restarts", retry_after_seconds=3)

    def _num_cached(self, prompt: HashedPrompt) -> int:
        """Leading blocks."""
        keys = keys_of(prompt)
        return next((number for number, key in enumerate(keys) if key not in self._cached), len(keys))


def keys_of(prompt: HashedPrompt) -> list[bytes]:
    hashes = prompt.block_hashes
    return [hashes[start : start + HASH_BYTES] for start in range(0, len(hashes), HASH_BYTES)]


def namespaces_of(prompt: HashedPrompt) -> dict[bytes, bytes]:
    """By block hash; the last scope goes on to the end."""
    scopes = chain.from_iterable(repeat(namespace, count) for namespace, count in prompt.scopes)
    return dict(zip(keys_of(prompt), chain(scopes, repeat(prompt.scopes[-1][0])), strict=False))
