"""Decides what the next engine step computes. Plain Python: no tensor, clock or socket.

There is no prefill phase and no decode phase: each request has known tokens and computed tokens, and every step brings
the second closer to the first. A step takes the token of every running answer first, then chunks of prompts: of those
that run, then of those that wait, in two lanes, fairly by tenant, as much as fits into the step's tokens and time.
"""

from __future__ import annotations

import itertools
from math import inf

from engine.answers import Answers
from engine.batch import SchedulerOutput, StepOutput
from engine.block_history import BlockHistory
from engine.chunking import Budget, Chunker
from engine.config import SchedulerConfig
from engine.counters import SchedulerCounters
from engine.fairness import GENERATED_WEIGHT
from engine.lanes import LONG_LANE_SHARE, SHORT_LANE_HEADROOM
from engine.messages import Admitted, PromptLogprobs, RequestFailed, TokenOutput
from engine.request import Lane, Request, RequestStatus, with_siblings
from engine.step_cost import StepCost
from engine.waiting import WaitingRoom
from prefixcache import Allocation, PrefixCache
from prefixcache.admission import table_reserve
from prefixcache.block_table import Match
from prefixcache.interface import CopyOp

News = Admitted | PromptLogprobs | RequestFailed


class Scheduler:
    """Waiting and running requests over one prefix cache."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: PrefixCache,
        *,
        eos_token_ids: frozenset[int],
        cost: StepCost | None = None,
    ) -> None:
        self._config = config
        self._cache = cache
        self._eos_token_ids = eos_token_ids
        self._cost = cost or StepCost()
        self._chunker = Chunker(config, self._cost)
        self._answers = Answers()
        self._running: list[Request] = []  # oldest first
        self._waiting = WaitingRoom(config, cache, self._running)
        self._arrivals = itertools.count(1)  # 0 is nobody's number
        self._num_steps = 0
        self._news: list[News] = []
        self._ended: list[str] = []
        self.history = BlockHistory(cache)
        self.max_num_seqs = config.max_num_seqs or config.max_num_batched_tokens
        """Answers that may run at the same time."""
        self._num_seqs_limit = self.max_num_seqs  # fewer for a while after memory ran out
        self.counters = SchedulerCounters()

    @property
    def num_waiting(self) -> int:
        """Requests without blocks."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests with blocks."""
        return len(self._running)

    def running_and_waiting(self) -> tuple[list[Request], list[Request]]:
        """Return all requests with and without blocks."""
        return self._running.copy(), list(self._waiting)

    def find(self, request_id: str) -> Request | None:
        """Return a request that waits or runs."""
        return self._answers.find(request_id)

    def ask_again(self) -> None:
        """More may fit than before: a pin was given back, or an option changed."""
        self._waiting.ask_again()

    def first_waiting_id(self) -> str:
        """Return the id of the request that waits longest for blocks."""
        return self._waiting.oldest().request_id

    def add(self, request: Request) -> None:
        """Queue a request. Raises: ValueError: its id is in use."""
        answers = with_siblings(request)
        self._answers.add(answers)
        arrival = next(self._arrivals)
        for answer in answers:
            answer.arrival = arrival
        self._waiting.add(request)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Forget a request that may be there, with all its answers, and free its blocks.

        With an index it is one answer; not before its first token, for the others may still have to fork from it.
        """
        for answer in self._answers.of(request_id):
            if index is None or (answer.index == index and answer.num_output_tokens):
                self._finish(answer)

    def schedule(self) -> SchedulerOutput:
        """Put the next step together; empty when nothing can run."""
        step = SchedulerOutput()
        self._num_steps += 1
        preemptions = self.counters.preemptions
        tokens = self._decode(step)
        self._prefill(step, tokens, may_admit=self.counters.preemptions == preemptions)
        if step.requests:  # an empty step reaches no runner
            step.ended.extend(self._ended)
            self._ended.clear()
        return step

    def retry_with_less(self, scheduled: SchedulerOutput, *, had_guest: bool = False) -> None:
        """After a step that ran out of memory: preempt the youngest of its requests and run fewer until one ends.

        Also preempts those whose blocks the step was to copy, for nobody knows whether it did. The others keep their
        progress. A request that was alone in the step fails. A guest, a warm-up, was one too many: without it all the
        others are tried again.
        """
        scheduled_keys = {part.request_id for part in scheduled.requests}
        tried = [] if had_guest else [request for request in self._running if request.key in scheduled_keys]
        if len(tried) == 1:
            why = "memory ran out on this request; it may fit when less else runs on this machine"
            self._fail(tried[0], why, retryable=True)
        if tried:
            self._num_seqs_limit = max(1, min(self._num_seqs_limit, len(self._running)) - 1)
        self._ended[:0] = scheduled.ended
        copied = {copy.dst for copy in scheduled.copies}
        for request in reversed(self._running.copy()):
            assert request.table is not None
            is_youngest = len(tried) > 1 and request is tried[-1]
            if is_youngest or not copied.isdisjoint(request.table.block_ids):
                self._preempt(request, SchedulerOutput())

    def take_news(self) -> list[News]:
        """Return which requests were admitted or failed since the last call, and what was told of prompts."""
        news, self._news = self._news, []
        return news

    def update(self, scheduled: SchedulerOutput, result: StepOutput, *, seconds: float = 0.0) -> list[TokenOutput]:
        """Enter what a step produced. A request is forgotten when one of its answers is in `result.failed`.

        Args:
            scheduled: the step.
            result: what it produced.
            seconds: what it took; 0: not measured.
        """
        self._cost.observe(scheduled.requests, seconds)
        outputs: list[TokenOutput] = []
        for part in scheduled.requests:
            request = self._answers.find(part.request_id)
            if request is None or request.table is None:
                continue
            if part.request_id in result.failed:
                self._fail(request, result.failed[part.request_id])
                continue
            if (why := request.follow_grammar(result.token_ids.get(part.request_id))) is not None:
                self._fail(request, why, param=request.sampling.grammar_field)
                continue
            request.num_computed_tokens += part.num_new_tokens
            if part.targets is not None:
                self._score(request, part.num_computed_tokens + 1, result)
            if part.sample:
                outputs.append(self._append_token(request, result))
            else:
                self._cache.commit(request.table, request.num_computed_tokens)
                if request.num_uncomputed_tokens == 0:  # nothing is to be generated
                    self._finish(request)
                    outputs.append(TokenOutput(request.request_id, [], "length", request.index))
            self._waiting.wake(request)
        return outputs

    def _score(self, request: Request, position: int, result: StepOutput) -> None:
        said = result.prompt_logprobs[request.key]
        self._news.append(PromptLogprobs(request.request_id, position, said))
        request.is_scored = request.num_computed_tokens >= request.num_prompt_tokens - 1

    def _append_token(self, request: Request, result: StepOutput) -> TokenOutput:
        assert request.table is not None
        token_id, logprobs = result.token_ids[request.key], result.logprobs.get(request.key)
        request.append(token_id)
        self.counters.generated_tokens += 1
        self._cache.commit(request.table, request.num_computed_tokens, (token_id,))
        reason = request.finish_reason(self._eos_token_ids)
        if reason is not None:
            self._finish(request)
        told = None if logprobs is None else [logprobs]
        return TokenOutput(request.request_id, [token_id], reason, request.index, told)

    def _decode(self, step: SchedulerOutput) -> int:
        """Schedule the token of every running answer; returns the tokens left for prompts."""
        budget = Budget(self._config.max_num_batched_tokens, inf)
        for request in [r for r in self._running if r.num_uncomputed_tokens == 1]:
            if request.status is RequestStatus.RUNNING:  # not preempted for an older one just now
                self._schedule_running(request, step, budget)
        return budget.tokens

    def _prefill(self, step: SchedulerOutput, tokens: int, *, may_admit: bool) -> None:
        """Share what is left between the lanes: short prompts first, but a part is kept for long ones."""
        prefilling: dict[Lane, list[Request]] = {lane: [] for lane in Lane}
        for request in self._running:
            if request.num_uncomputed_tokens > 1:
                prefilling[self._waiting.lane_of_running(request)].append(request)
        seconds = self._seconds_left(step)
        rest = Budget(tokens, seconds)
        short = [request for request in prefilling[Lane.SHORT] if request.lane is Lane.SHORT]  # not by inheritance
        if self._has_work(Lane.LONG, prefilling[Lane.LONG]) and self._has_work(Lane.SHORT, short):
            kept = max(int(tokens * LONG_LANE_SHARE) or self._num_steps & 1, self._chunker.cell)  # a few: by turns
            part = Budget(max(0, tokens - kept), seconds * (1 - LONG_LANE_SHARE))
            self._serve(Lane.SHORT, prefilling[Lane.SHORT], step, part, may_admit=may_admit)
            rest.tokens -= max(0, tokens - kept) - part.tokens
            if part.used:  # the step is short, too: who else is short waits less for the next one
                rest.seconds = seconds * LONG_LANE_SHARE
        else:
            self._serve(Lane.SHORT, prefilling[Lane.SHORT], step, rest, may_admit=may_admit)
        self._serve(Lane.LONG, prefilling[Lane.LONG], step, rest, may_admit=may_admit)

    def _seconds_left(self, step: SchedulerOutput) -> float:
        """Return the time for prompts: what the answers leave of a step, or as much as they take if that is more."""
        limit = self._config.max_step_seconds
        if limit == 0 or self._config.deterministic:
            return inf
        cost = self._cost
        taken = cost.fixed + sum(cost.decode_seconds(part.num_computed_tokens) for part in step.requests)
        return max(cost.full_step_seconds - taken, taken) if limit is None else limit - taken

    def _has_work(self, lane: Lane, prefilling: list[Request]) -> bool:
        return bool(prefilling) or self._waiting.next(lane) is not None

    def _serve(
        self, lane: Lane, prefilling: list[Request], step: SchedulerOutput, budget: Budget, *, may_admit: bool
    ) -> None:
        """Go on with the prompts of a lane that have blocks, then begin with others."""
        preemptions = self.counters.preemptions
        prefilling.sort(key=self._waiting.order_of_running)
        for request in prefilling:
            if request.status is RequestStatus.RUNNING:
                self._schedule_running(request, step, budget)
        while (
            may_admit
            and self.counters.preemptions == preemptions
            and self._chunker.is_open(budget)
            and (newcomer := self._waiting.next(lane)) is not None
        ):
            self._try_to_admit(newcomer, step, budget)

    def _try_to_admit(self, request: Request, step: SchedulerOutput, budget: Budget) -> None:
        """Give a request whose turn it is its blocks; or it leaves its lane, or stalls it."""
        num_tokens = request.num_tokens + request.num_remaining_tokens
        limit = self._cache.max_request_tokens(request.prompt)
        if num_tokens > limit:  # of the pool, more was pinned while it waited
            why = f"prompt + max_tokens is {num_tokens}, the part of the block pool that is not pinned holds {limit}"
            self._fail(request, why, param="messages")
            return
        with self._waiting.match(request) as match:
            if self._waiting.leaves_lane(request, match):
                return
            allocation = self._admit(request, match)
        if allocation is None:
            self._waiting.stall(request)
            return
        request.table = allocation.table
        request.num_computed_tokens = allocation.num_cached_tokens
        request.status = RequestStatus.RUNNING
        self._running.append(request)
        self._waiting.admit(request, bypasses=request.lane is Lane.LONG or not all(self._headroom_left()))
        step.copies.extend(allocation.copies)
        self._record_admission(request, allocation)
        self._schedule_running(request, step, budget)

    def _admit(self, request: Request, match: Match) -> Allocation | None:
        """Ask for blocks and a place; the long lane leaves some of both to the short one."""
        blocks, sequences = self._headroom_left() if request.lane is Lane.LONG and self._running else (0, 0)
        num_sequences = sum(running.num_sequences for running in self._running) + request.num_sequences
        if num_sequences > self._num_seqs_limit - sequences and self._running:
            return None
        return self._cache.admit(
            match,
            max_new_tokens=request.num_remaining_tokens,
            num_sequences=request.num_sequences,
            headroom=blocks,
            owner=request.arrival,
        )

    def _headroom_left(self) -> tuple[int, int]:
        """Return the blocks and sequences that are the short lane's and that it does not use now."""
        config = self._cache.config
        if self._config.long_prefill_token_threshold == 0:
            return 0, 0
        blocks = int(config.num_blocks * SHORT_LANE_HEADROOM)
        sequences = int(self._num_seqs_limit * SHORT_LANE_HEADROOM)
        for request in self._running:
            if request.lane is Lane.SHORT and request.table is not None:
                blocks -= len(request.table.block_ids) + table_reserve(config, request.table)
                sequences -= request.num_sequences
        return max(0, blocks), max(0, sequences)

    def _record_admission(self, request: Request, allocation: Allocation) -> None:
        if request.was_admitted:
            return
        request.was_admitted = True
        request.num_cached_tokens = num_cached = allocation.num_cached_tokens
        num_prompt, explanation = request.num_prompt_tokens, allocation.explanation
        self.counters.admit(num_prompt, num_cached)
        request.reasons = reasons = {reason.value: count for reason, count in allocation.reasons.items()}
        self.history.explanations.keep(request, explanation)
        reason, num_common = explanation.reason.value, explanation.num_common_tokens
        saved, ago = self._cost.chunk_seconds(num_cached, 0), explanation.evictions_ago
        self._news.append(Admitted(request.request_id, num_prompt, num_cached, reasons, reason, num_common, saved, ago))

    def _fork(self, request: Request, step: SchedulerOutput) -> list[Request]:
        """Give the siblings what this request has computed: all of the prompt but its last token.

        Each computes that one itself, in the same step, and draws from its own logits with its own seed. Where there is
        no room a sibling waits and is admitted like any request, with the prompt in the cache.
        """
        assert request.table is not None
        siblings, request.unforked = request.unforked, []
        for sibling in siblings:
            fork = self._cache.fork(request.table)
            if fork is None:
                sibling.status = RequestStatus.WAITING
                self._waiting.add(sibling)
                continue
            sibling.table = fork.table
            sibling.num_computed_tokens = request.num_computed_tokens
            sibling.lane = request.lane
            sibling.status = RequestStatus.RUNNING
            self._running.append(sibling)
            step.copies.extend(fork.copies)
        self._cache.forgo_forks(request.table)
        return siblings

    def _schedule_running(self, request: Request, step: SchedulerOutput, budget: Budget) -> None:
        if request.unforked and request.num_uncomputed_tokens == 1:
            for answer in (request, *self._fork(request, step)):
                if answer.status is RequestStatus.RUNNING:
                    self._schedule_running(answer, step, budget)
            return
        if not request.is_scored and any(part.targets is not None for part in step.requests):
            return  # one prompt a step: the logits of each of its tokens are kept
        num_new_tokens = self._chunker.cut(request, budget)
        if num_new_tokens == 0:
            return
        copies = self._grow_or_preempt(request, request.num_computed_tokens + num_new_tokens, step)
        if copies is not None:
            step.copies.extend(copies)
            budget.take(num_new_tokens, self._cost.chunk_seconds(num_new_tokens, request.num_computed_tokens))
            self._waiting.charge(request, GENERATED_WEIGHT if num_new_tokens == 1 else num_new_tokens)
            step.requests.append(request.part(num_new_tokens))

    def _grow_or_preempt(self, request: Request, num_tokens: int, step: SchedulerOutput) -> list[CopyOp] | None:
        """Get slots for tokens [0, num_tokens), at the cost of younger requests; None: it was the youngest itself."""
        assert request.table is not None
        while (copies := self._cache.grow(request.table, num_tokens)) is None:
            youngest = self._running[-1]
            self._preempt(youngest, step)
            if youngest is request:
                return None
        return copies

    def _preempt(self, request: Request, step: SchedulerOutput) -> None:
        """Take a request's blocks; it is asked again before any younger one of its lane."""
        step.requests[:] = [part for part in step.requests if part.request_id != request.key]
        request.status = RequestStatus.WAITING
        request.num_computed_tokens = 0
        self._release(request)
        self._waiting.add_preempted(request)
        self.counters.preemptions += 1

    def _fail(self, request: Request, why: str, *, param: str | None = None, retryable: bool = False) -> None:
        self.abort(request.request_id)
        self._news.append(RequestFailed(request.request_id, why, param, retryable))

    def _finish(self, request: Request) -> None:
        self._num_seqs_limit = min(self._num_seqs_limit + 1, self.max_num_seqs)
        self._answers.remove(request)
        if request.index == 0:  # the others are its forks, counted with it
            self.history.keep(request)
        if request.status is RequestStatus.RUNNING:
            self._release(request)
        elif request.status is RequestStatus.WAITING:
            self._waiting.remove(request)
        request.status = RequestStatus.FINISHED

    def _release(self, request: Request) -> None:
        """Take the blocks away; who waited for them is asked again."""
        assert request.table is not None
        self._running.remove(request)
        self._cache.free(request.table)
        request.table = None
        self._ended.append(request.key)
        self._waiting.wake(request)
