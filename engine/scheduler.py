"""Decides what the next engine step computes. Plain Python: no tensor, clock or socket.

There is no prefill phase and no decode phase: each request has known tokens and computed tokens, and every step brings
the second closer to the first. First come, first served; requests that decode go before those that prefill, so that a
long prompt never stalls running answers for more than one chunk.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from engine.batch import ScheduledRequest, SchedulerOutput, StepOutput
from engine.config import SchedulerConfig
from engine.messages import Admitted, RequestFailed, TokenOutput
from engine.request import Request, RequestStatus, with_siblings
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
        self._requests: dict[str, Request] = {}  # by key
        self._answers: dict[str, list[Request]] = {}  # by the client's id, those that have not ended
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []  # oldest first
        self._admitted: list[Admitted] = []
        self._failed: list[RequestFailed] = []
        self._ended: list[str] = []
        self.counters = SchedulerCounters()

    @property
    def num_waiting(self) -> int:
        """Requests without blocks."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests with blocks."""
        return len(self._running)

    def first_waiting_id(self) -> str:
        """Return the id of the request that is admitted next."""
        return self._waiting[0].request_id

    def add(self, request: Request) -> None:
        """Queue a request. Raises: ValueError: its id is in use."""
        answers = with_siblings(request)
        if request.request_id in self._answers or any(answer.key in self._requests for answer in answers):
            raise ValueError(f"request_id: {request.request_id!r} is in use")
        self._requests.update((answer.key, answer) for answer in answers)
        self._answers[request.request_id] = answers
        self._waiting.append(request)

    def abort(self, request_id: str) -> bool:
        """Forget a request with all its answers and free its blocks; return False for one that is not known."""
        answers = self._answers.get(request_id, ())
        for answer in list(answers):
            self._finish(answer)
        return bool(answers)

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
        """Enter what a step produced. A request is forgotten when one of its answers is in `result.failed`."""
        outputs: list[TokenOutput] = []
        for part in scheduled.requests:
            request = self._requests.get(part.request_id)
            if request is None or request.table is None:
                continue
            if part.request_id in result.failed:
                self._fail(request, RequestFailed(request.request_id, result.failed[part.request_id], None))
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
            outputs.append(TokenOutput(request.request_id, [token_id], reason, request.index))
            if reason is not None:
                self._finish(request)
        return outputs

    def take_failed(self) -> list[RequestFailed]:
        """Return the requests that ended with an error since the last call."""
        failed, self._failed = self._failed, []
        return failed

    def _fork(self, request: Request, step: _Step) -> list[Request]:
        """Give the siblings what this request has computed: all of the prompt but its last token.

        Each computes that one itself, in the same step, and draws from its own logits with its own seed. Where there is
        no room a sibling waits and is admitted like any request, with the prompt in the cache.
        """
        assert request.table is not None
        siblings, request.unforked = request.unforked, []
        waiting = []
        for sibling in siblings:
            fork = self._cache.fork(request.table)
            if fork is None:
                sibling.status = RequestStatus.WAITING
                waiting.append(sibling)
                continue
            sibling.table = fork.table
            sibling.num_computed_tokens = request.num_computed_tokens
            sibling.status = RequestStatus.RUNNING
            self._running.append(sibling)
            step.output.copies.extend(fork.copies)
        self._waiting.extendleft(reversed(waiting))
        if waiting:
            self._cache.forgo_forks(request.table)
        return siblings

    def _schedule_running(self, request: Request, step: _Step) -> None:
        if request.unforked and request.num_uncomputed_tokens == 1:
            for answer in (request, *self._fork(request, step)):
                if answer.status is RequestStatus.RUNNING:
                    self._schedule_running(answer, step)
            return
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
            if part.request_id == request.key:  # scheduled earlier in this very step
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
        while self._waiting and step.token_budget > 0 and self._has_room_for(self._waiting[0]):
            request = self._waiting.popleft()
            with self._cache.match(request.resume_prompt(self._cache.config.block_size)) as match:
                if match.num_pending_tokens > 0:
                    passed_over.append(request)  # another request computes its prefix right now: wait for that
                    continue
                allocation = self._cache.admit(
                    match, max_new_tokens=request.num_remaining_tokens, num_sequences=request.num_sequences
                )
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
        num_cached_tokens = allocation.num_cached_tokens
        self.counters.prompt_tokens += request.num_prompt_tokens
        self.counters.cached_tokens += num_cached_tokens
        reasons = {reason.value: num_blocks for reason, num_blocks in allocation.reasons.items()}
        self._admitted.append(Admitted(request.request_id, request.num_prompt_tokens, num_cached_tokens, reasons))

    def _has_room_for(self, request: Request) -> bool:
        """Whether its answers may run beside those that run or are still to be forked."""
        num_sequences = sum(running.num_sequences for running in self._running)
        return num_sequences + request.num_sequences <= self._config.max_num_seqs

    def _chunk(self, request: Request, step: _Step) -> int:
        limit = min(request.num_uncomputed_tokens - bool(request.unforked), step.token_budget)
        return min(limit, self._config.prefill_chunk) if self._config.prefill_chunk else limit

    def _append(self, request: Request, num_new_tokens: int, step: _Step) -> None:
        assert request.table is not None
        start, stop = request.num_computed_tokens, request.num_computed_tokens + num_new_tokens
        step.token_budget -= num_new_tokens
        step.output.requests.append(
            ScheduledRequest(
                request_id=request.key,
                token_ids=request.tokens(start, stop),
                num_computed_tokens=start,
                block_ids=request.table.block_ids,
                sampling=request.sampling,
                seed=request.seed,
                sample=stop == request.num_tokens,
            )
        )

    def _finish(self, request: Request) -> None:
        del self._requests[request.key]
        answers = self._answers[request.request_id]
        answers.remove(request)
        if not answers:
            del self._answers[request.request_id]
        if request.status is RequestStatus.RUNNING:
            self._release(request)
        elif request.status is RequestStatus.WAITING:
            self._waiting.remove(request)
        request.status = RequestStatus.FINISHED

    def _fail(self, request: Request, why: RequestFailed) -> None:
        self.abort(request.request_id)
        self._failed.append(why)

    def _release(self, request: Request) -> None:
        """Take a running request's blocks away."""
        assert request.table is not None
        self._running.remove(request)
        self._cache.free(request.table)
        request.table = None
        self._ended.append(request.key)
