"""A backend without an engine: deterministic replies, a prefix cache of hashes, and switches for what can go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from gateway.backends.base import (
    Admission,
    BackendFailedError,
    BackendSnapshot,
    GenerationRequest,
    ModelInfo,
    TokenBatch,
    TokenLogprobs,
)
from gateway.backends.control import ExplainedRequest
from prefixcache.interface import PrefixCacheConfig, Reason
from prefixcache.reasons import main_reason
from tests.gateway.support.fake_control import BLOCK_SIZE, TOTAL_BLOCKS, FakeControl, keys_of, namespaces_of

TOKENS_PER_SECOND = 1024
"""Of prompts, as it tells when it says how long it would have computed."""


@dataclass
class FakeBackend(FakeControl):
    """What a test may set, and what it may look at afterwards."""

    reply: Sequence[int] = ()
    """Tokens of every answer; the end-of-sequence token, where wanted, among them."""
    script: deque[Sequence[int]] = field(default_factory=deque)
    """Replies of the next requests, one each; then `reply` again."""
    other_replies: Sequence[Sequence[int]] = ()
    """Of the answers to one request behind the first, by turns; empty: all say the same."""
    ends: bool = True
    """The last token of the reply is the model's own end; else the answer ends by length."""
    batch_size: int = 1
    delay_seconds: float = 0.0
    """Before each batch."""
    seconds_ago: float = 0.0
    """Of computing before an admission is told."""
    fail_after: int | None = None
    """Batches before the engine dies."""
    reject: Exception | None = None
    """Raised in place of an admission."""
    eos_token_id: int = 0
    max_model_len: int = 512
    hash_epoch: int = 1
    admit: asyncio.Event | None = None
    """Admission waits for it."""

    requests: list[GenerationRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    """Left before their end, while waiting or running."""
    ended: list[tuple[str, int]] = field(default_factory=list)
    """Single answers that were left."""
    num_started: int = 0
    num_stopped: int = 0
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        self.num_started += 1

    async def stop(self) -> None:
        self.num_stopped += 1
        self._stopped.set()

    def ready(self) -> bool:
        return self.is_up

    def state(self) -> str:
        return "ready" if self.is_up else "restarting: out of luck"

    def model_info(self) -> ModelInfo:
        self._check_up()
        return ModelInfo(
            max_model_len=self.max_model_len,
            block_size=BLOCK_SIZE,
            hash_seed=7,
            hash_epoch=self.hash_epoch,
            namespace_fields={"model": "tiny"},
            eos_token_ids=frozenset({self.eos_token_id}),
            cache=PrefixCacheConfig(
                TOTAL_BLOCKS,
                block_size=BLOCK_SIZE,
                hash_seed=7,
                hash_epoch=self.hash_epoch,
                reuse_partial_blocks=False,
            ),
        )

    async def generate(self, request: GenerationRequest) -> FakeGeneration:
        self._check_up()
        self.requests.append(request)
        self.live.add(request.request_id)
        try:
            if self.admit is not None:
                await self.admit.wait()
            if self.reject is not None:
                raise self.reject
        except BaseException:
            self.abort(request.request_id)
            raise
        return FakeGeneration(self, request, self._admission(request))

    async def snapshot(self) -> BackendSnapshot:
        self._check_up()
        active = len(self.live)
        blocks = {
            "total_blocks": TOTAL_BLOCKS,
            "free_blocks": TOTAL_BLOCKS - active - len(self._cached),
            "cached_blocks": len(self._cached),
            "active_blocks": active,
            "active_private_blocks": active,
            "active_shared_blocks": 0,
            "shared_blocks": 0,
            "pinned_blocks": 0,
            "shared_blocks_max": 0,
            "pinned_blocks_max": 0,
            "shared_blocks_limit": int(self.options.max_shared_ratio * TOTAL_BLOCKS),
            "pinned_blocks_limit": self.pinned_blocks_limit,
        }
        running, waiting = {"short": active, "long": 0}, {"short": 0, "long": 0}
        return BackendSnapshot(blocks=blocks, counters={"evicted_blocks": 3}, running=running, waiting=waiting)

    def abort(self, request_id: str) -> None:
        if request_id in self.live:
            self.live.remove(request_id)
            self.aborted.append(request_id)

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    async def pause(self) -> None:
        """Before a batch, until it is due or the backend stops."""
        if self.delay_seconds:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), self.delay_seconds)
        else:
            await asyncio.sleep(0)

    def _admission(self, request: GenerationRequest) -> Admission:
        """Reuse the blocks whose hashes were seen, but never the last token's."""
        keys = keys_of(request)
        explanation = self._explanation(request)
        self.explained[request.request_id] = ExplainedRequest(explanation, self._last_id)
        self._last_id, self._last_prompt = request.request_id, request.token_ids
        num_tokens = len(request.token_ids)
        num_hits = min(self._num_cached(request), (num_tokens - 1) // BLOCK_SIZE)
        self._cached |= namespaces_of(request)
        reasons = {}
        if num_hits:
            reasons["hit"] = num_hits
        if len(keys) > num_hits:
            reasons["diverged" if num_hits else "never_cached"] = len(keys) - num_hits
        num_cached = num_hits * BLOCK_SIZE
        admission = self._admissions[request.request_id] = Admission(
            num_tokens,
            num_cached,
            reasons,
            main_reason(
                {Reason(name): count for name, count in reasons.items()}, num_computed_tokens=num_tokens - num_cached
            ),
            explanation.num_common_tokens,
            saved_seconds=num_cached / TOKENS_PER_SECOND,
            seconds_ago=self.seconds_ago,
        )
        return admission


def logprobs_of(token: int, num: int) -> TokenLogprobs:
    """The token itself is the likeliest, the ids after it follow."""
    likeliest = [(token + rank, -token / 8 - rank) for rank in range(num)]
    return TokenLogprobs(-token / 8, likeliest, 1)


class FakeGeneration:
    """Hands out the replies, batch by batch, the answers by turns."""

    def __init__(self, backend: FakeBackend, request: GenerationRequest, admission: Admission) -> None:
        self.admission = admission
        self._scripted = backend.script.popleft() if backend.script else None
        num = request.sampling.num_prompt_logprobs
        self.prompt_logprobs = [
            [] if num is None else [logprobs_of(int(token), num) for token in request.token_ids[1:]]
        ]
        self._backend = backend
        self._request = request
        self._running = list(range(request.sampling.n))

    async def __aiter__(self) -> AsyncIterator[TokenBatch]:
        backend, request = self._backend, self._request
        for number in itertools.count():
            for choice in list(self._running):
                await backend.pause()
                if backend.is_stopped or number == backend.fail_after:
                    backend.live.discard(request.request_id)
                    raise BackendFailedError("the engine died")
                batch = self._batch(choice, number)
                if batch.finish_reason is not None:
                    self._running.remove(choice)
                if not self._running:
                    backend.live.discard(request.request_id)
                yield batch
            if not self._running:
                return

    def end(self, choice: int) -> None:
        if choice in self._running:
            self._running.remove(choice)
            self._backend.ended.append((self._request.request_id, choice))

    def abort(self) -> None:
        self._backend.abort(self._request.request_id)

    def _batch(self, choice: int, number: int) -> TokenBatch:
        backend, sampling = self._backend, self._request.sampling
        if not backend.batch_size:
            raise ValueError("a batch of nothing: a test wants a mistake of ours")
        others = backend.other_replies
        whole = others[(choice - 1) % len(others)] if choice and others else self._scripted or backend.reply
        reply = list(whole)[: sampling.max_tokens]
        start = range(0, max(1, len(reply)), backend.batch_size)[number]
        stop = start + backend.batch_size
        tokens = reply[start:stop]
        last = "stop" if backend.ends and reply and len(reply) == len(whole) else "length"
        num = sampling.num_logprobs
        logprobs = None if num is None else [logprobs_of(token, num) for token in tokens]
        return TokenBatch(tokens, last if stop >= len(reply) else None, logprobs, choice)
