"""Decides what the next engine step computes. Plain Python: no tensor, clock or socket.

There is no prefill phase and no decode phase: each request has known tokens and computed tokens, and every step brings
the second closer to the first. First come, first served; requests that decode go before those that prefill, so that a
long prompt never stalls running answers for more than one chunk.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from engine.batch import ScheduledRequest, SchedulerOutput, StepOutput
from engine.block_history import BlockHistory
from engine.config import SchedulerConfig
from engine.messages import Admitted, TokenOutput
from engine.request import Request, RequestStatus
from prefixcache import Allocation, PrefixCache
from prefixcache.interface import CopyOp


@dataclass(slots=True)
class SchedulerCounters:
    """Monotonic since start."""

    preemptions: int = 0
    """Requests that lost their blocks and compute again."""
    prompt_tokens: int = 0
    """Counted once, at the first admission."""
    cached_tokens: int = 0
    """Of those, taken from the cache."""
    generated_tokens: int = 0
    """Sampled."""


@dataclass(slots=True)
class _Step:
    """A step while it is put together."""

    token_budget: int
    output: SchedulerOutput = field(default_factory=SchedulerOutput)


class Scheduler:
    """Waiting and running requests over one prefix cache."""

    def __init__(self, config: SchedulerConfig, cache: PrefixCache, *, eos_token_ids: frozenset[int]) -> None:
        self._config = config
        self._cache = cache
        self._eos_token_ids = eos_token_ids
        self._requests: dict[str, Request] = {}
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []  # oldest first
        self._admitted: list[Admitted] = []
        self._ended: list[str] = []
        self.history = BlockHistory(cache)
        self.counters = SchedulerCounters()

    @property
    def num_waiting(self) -> int:
        """Requests without blocks."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests with blocks."""
        return len(self._running)

    def find(self, request_id: str) -> Request | None:
        """Return a request that waits or runs."""
        return self._requests.get(request_id)

    def waiting(self) -> list[Request]:
        """List the requests without blocks, the next one first."""
        return list(self._waiting)

    def first_waiting_id(self) -> str:
        """Return the id of the request that is admitted next."""
        return self._waiting[0].request_id

    def add(self, request: Request) -> None:
        """Queue a request. Raises: ValueError: its id is in use."""
        if request.request_id in self._requests:
            raise ValueError(f"request_id: {request.request_id!r} is in use")
        self._requests[request.request_id] = request
        self._waiting.append(request)

    def abort(self, request_id: str) -> bool:
        """Forget a request and free its blocks; return False for one that is not known (any more)."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._finish(request)
        return True

    def schedule(self) -> SchedulerOutput:
        """Put the next step together; empty when nothing can run."""
        step = _Step(token_budget=self._config.max_num_batched_tokens)
        preemptions = self.counters.preemptions
        decoding = [r for r in self._running if r.num_uncomputed_tokens == 1]
        prefilling = [r for r in self._running if r.num_uncomputed_tokens > 1]
        for request in decoding + prefilling:
            if request.status is RequestStatus.RUNNING:  # not preempted for an older one just now
                self._schedule_running(request, step)
        if self.counters.preemptions == preemptions:
            self._admit_waiting(step)
        if step.output.requests:  # an empty step reaches no runner
            step.output.ended.extend(self._ended)
            self._ended.clear()
        return step.output

    def take_admitted(self) -> list[Admitted]:
        """Return the admissions since the last call."""
        admitted, self._admitted = self._admitted, []
        return admitted

    def update(self, scheduled: SchedulerOutput, result: StepOutput) -> list[TokenOutput]:
        """Enter what a step produced. Requests in `result.failed` are forgotten."""
        outputs: list[TokenOutput] = []
        for part in scheduled.requests:
            request = self._requests.get(part.request_id)
            if request is None or request.table is None:
                continue
            if part.request_id in result.failed:
                self._finish(request)
                continue
            request.num_computed_tokens += part.num_new_tokens
            if not part.sample:
                self._cache.commit(request.table, request.num_computed_tokens)
                continue
            token_id = result.token_ids[part.request_id]
            request.append(token_id)
            self.counters.generated_tokens += 1
            self._cache.commit(request.table, request.num_computed_tokens, (token_id,))
            reason = request.finish_reason(self._eos_token_ids)
            outputs.append(TokenOutput(request.request_id, [token_id], reason))
            if reason is not None:
                self._finish(request)
        return outputs

    def _schedule_running(self, request: Request, step: _Step) -> None:
        num_new_tokens = self._chunk(request, step)
        if num_new_tokens == 0:
            return
        copies = self._grow_or_preempt(request, request.num_computed_tokens + num_new_tokens, step)
        if copies is not None:
            step.output.copies.extend(copies)
            self._append(request, num_new_tokens, step)

    def _grow_or_preempt(self, request: Request, num_tokens: int, step: _Step) -> list[CopyOp] | None:
        """Get slots for tokens [0, num_tokens), at the cost of younger requests; None: it was the youngest itself."""
        assert request.table is not None
        while (copies := self._cache.grow(request.table, num_tokens)) is None:
            youngest = self._running[-1]
            self._preempt(youngest, step)
            if youngest is request:
                return None
        return copies

    def _preempt(self, request: Request, step: _Step) -> None:
        assert request.table is not None
        for part in step.output.requests:
            if part.request_id == request.request_id:  # scheduled earlier in this very step
                step.output.requests.remove(part)
                step.token_budget += part.num_new_tokens
                break
        self._release(request)
        request.num_computed_tokens = 0
        request.status = RequestStatus.WAITING
        self._waiting.appendleft(request)
        self.counters.preemptions += 1

    def _admit_waiting(self, step: _Step) -> None:
        passed_over: list[Request] = []
        while self._waiting and step.token_budget > 0 and len(self._running) < self._config.max_num_seqs:
            request = self._waiting.popleft()
            with self._cache.match(request.resume_prompt(self._cache.config.block_size)) as match:
                if match.num_pending_tokens > 0:
                    passed_over.append(request)  # another request computes its prefix right now: wait for that
                    continue
                allocation = self._cache.admit(match, max_new_tokens=request.num_remaining_tokens)
            if allocation is None:
                self._waiting.appendleft(request)  # nobody overtakes for want of memory, else it might wait forever
                break
            request.table = allocation.table
            request.num_computed_tokens = allocation.num_cached_tokens
            request.status = RequestStatus.RUNNING
            self._running.append(request)
            step.output.copies.extend(allocation.copies)
            self._record_admission(request, allocation)
            self._schedule_running(request, step)
        self._waiting.extendleft(reversed(passed_over))

    def _record_admission(self, request: Request, allocation: Allocation) -> None:
        if request.was_admitted:
            return
        request.was_admitted = True
        request.num_cached_tokens = num_cached_tokens = allocation.num_cached_tokens
        self.counters.prompt_tokens += request.num_prompt_tokens
        self.counters.cached_tokens += num_cached_tokens
        request.reasons = reasons = {reason.value: count for reason, count in allocation.reasons.items()}
        self._admitted.append(Admitted(request.request_id, request.num_prompt_tokens, num_cached_tokens, reasons))

    def _chunk(self, request: Request, step: _Step) -> int:
        limit = min(request.num_uncomputed_tokens, step.token_budget)
        return min(limit, self._config.prefill_chunk) if self._config.prefill_chunk else limit

    def _append(self, request: Request, num_new_tokens: int, step: _Step) -> None:
        assert request.table is not None
        start, stop = request.num_computed_tokens, request.num_computed_tokens + num_new_tokens
        step.token_budget -= num_new_tokens
        step.output.requests.append(
            ScheduledRequest(
                request_id=request.request_id,
                token_ids=request.tokens(start, stop),
                num_computed_tokens=start,
                block_ids=request.table.block_ids,
                sampling=request.sampling,
                seed=request.seed,
                sample=stop == request.num_tokens,
            )
        )

    def _finish(self, request: Request) -> None:
        del self._requests[request.request_id]
        self.history.keep(request)
        if request.status is RequestStatus.RUNNING:
            self._release(request)
        else:
            self._waiting.remove(request)
        request.status = RequestStatus.FINISHED

    def _release(self, request: Request) -> None:
        """Take a running request's blocks away."""
        assert request.table is not None
        self._running.remove(request)
        self._cache.free(request.table)
        request.table = None
        self._ended.append(request.request_id)
