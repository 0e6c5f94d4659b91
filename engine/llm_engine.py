"""Couples scheduler, prefix cache and model runner; the worker's loop calls `step()`.

Knows nothing of processes and sockets. Everything that goes wrong with one request ends that request, with a reason.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

import msgspec

from engine.batch import SchedulerOutput, StepOutput
from engine.calls import Call, Reply
from engine.config import EngineConfig
from engine.control import EngineControl
from engine.errors import InvalidRequestError, is_out_of_memory
from engine.grammars import Grammar, GrammarFailure, Grammars
from engine.kv_layout import PER_CHANNEL
from engine.lanes import count_by_lane
from engine.messages import AddRequest, Admitted, EngineSnapshot, PromptLogprobs, RequestFailed, StepOutputs
from engine.prompt import checked_prompt
from engine.request import Request, seed_sequence
from engine.scheduler import Scheduler
from engine.warm_up import WarmUps
from prefixcache import PrefixCache
from prefixcache.interface import PrefixCacheConfig, Prompt

logger = logging.getLogger(__name__)

FromEngine = Admitted | PromptLogprobs | StepOutputs | RequestFailed | Reply

MAX_FAILED_STEPS = 3
"""Failed steps in a row after which the engine gives up, so that its supervisor starts a fresh one."""


class Runner(Protocol):
    """What executes a step: `ModelRunner`, or a fake in tests."""

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        ...

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer together."""
        ...

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        ...

    def execute(self, output: SchedulerOutput) -> StepOutput:
        """Perform the copies, run the model, sample."""
        ...


class LLMEngine:
    """One model, one pool, one scheduler."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        *,
        grammars: Grammars | None = None,
        hash_seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._runner = runner
        self._grammars = grammars
        self._without_grammar: dict[str, Request] = {}  # by id: theirs is being compiled
        self._refused: list[RequestFailed] = []  # theirs cannot be
        self.hash_seed = int.from_bytes(os.urandom(8), "little") if hash_seed is None else hash_seed
        self.hash_epoch = int.from_bytes(os.urandom(7), "little")  # names the seed, and does not tell it
        cache = config.cache
        self.cache = PrefixCache(
            PrefixCacheConfig(
                num_blocks=runner.num_blocks,
                block_size=cache.block_size,
                hash_seed=self.hash_seed,
                hash_epoch=self.hash_epoch,
                enabled=cache.enable_prefix_caching,
                policy="priority",  # without a priority it is LRU
                max_shared_ratio=cache.max_shared_ratio,
                max_pinned_ratio=cache.max_pinned_ratio,
                growth_reserve=cache.growth_reserve,
                reuse_partial_blocks=cache.kv_cache_dtype != PER_CHANNEL,
            )
        )
        self.scheduler = Scheduler(config.scheduler, self.cache, eos_token_ids=runner.eos_token_ids)
        self._warm_ups = WarmUps(
            self.cache,
            config.scheduler,
            max_num_seqs=self.scheduler.max_num_seqs,
            max_model_len=runner.max_model_len,
        )
        self._control = EngineControl(
            self.cache, self.scheduler, self._warm_ups, vocab_size=runner.vocab_size, clock=clock
        )
        self._seeds = seed_sequence(int.from_bytes(os.urandom(8), "little"))
        self._failed_steps = 0
        self.num_steps = 0

    @property
    def has_work(self) -> bool:
        """True while a request waits or runs, a prompt is to be warmed, or there is news of a grammar."""
        if self.scheduler.num_running + self.scheduler.num_waiting > 0 or self._warm_ups.has_work:
            return True
        return bool(self._refused) or (self._grammars is not None and self._grammars.has_ready)

    @property
    def is_compiling(self) -> bool:
        """True while a request waits for its grammar: there may be work at any moment."""
        return bool(self._without_grammar)

    def add(self, message: AddRequest) -> None:
        """Queue one generation.

        Raises: InvalidRequestError: it can never be served, or is malformed.
        """
        prompt = checked_prompt(message, vocab_size=self._runner.vocab_size)
        prompt = dataclasses.replace(
            prompt,
            num_earlier_blocks=message.num_earlier_blocks,
            reuses=message.sampling.num_prompt_logprobs is None,  # else the logits of every token are wanted
        )
        self._check(message, prompt)
        seed = message.sampling.seed if message.sampling.seed is not None else next(self._seeds)
        request = Request(message.request_id, prompt, message.sampling, seed=seed, tenant=message.tenant)
        if message.sampling.grammar is None:
            self.scheduler.add(request)
        else:
            self._find_grammar(request, message.sampling.grammar)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Forget a request, or one of its answers that has begun, if it is still there."""
        if self._grammars is not None and self._without_grammar.pop(request_id, None) is not None:
            self._grammars.cancel(request_id)
        self.scheduler.abort(request_id, index)

    def call(self, message: Call) -> list[FromEngine]:
        """Carry out an order between two steps; return the reply, unless it comes with a later step."""
        outcome = self._control.perform(message.call_id, message.order)
        if outcome is None:
            return []
        self.scheduler.ask_again()  # a pin or an option may have changed what fits
        return [Reply(message.call_id, outcome)]

    def cancel_call(self, call_id: int) -> None:
        """Stop working on a call, where it takes several steps."""
        self._warm_ups.cancel(call_id)

    def step(self) -> list[FromEngine]:
        """Run one step and return what the gateway must hear of it.

        Raises: RuntimeError: several steps failed in a row, so that the engine itself must be at fault.
        """
        self._control.expire()
        self._take_grammars()
        scheduled = self.scheduler.schedule()
        if not self.scheduler.num_waiting:
            self._warm_ups.join(scheduled, is_alone=not self.scheduler.num_running)
        messages: list[FromEngine] = [*self.scheduler.take_news(), *self._warm_ups.take_replies(), *self._refused]
        self._refused.clear()
        if not scheduled.requests:
            return messages + self._fail_stuck()
        self.num_steps += 1
        seconds = 0.0
        try:
            start = perf_counter()
            result = self._runner.execute(scheduled)
            seconds = perf_counter() - start
            self._failed_steps = 0
        except Exception as error:  # the loop's edge: one bad step must not end the process
            if is_out_of_memory(error):
                logger.warning("engine step %d of %d requests: %s", self.num_steps, len(scheduled.requests), error)
                self.scheduler.retry_with_less(scheduled, had_guest=self._warm_ups.fail())
                return [*messages, *self.scheduler.take_news()]
            logger.exception("engine step %d failed", self.num_steps)
            self._failed_steps += 1
            if self._failed_steps >= MAX_FAILED_STEPS:
                raise RuntimeError(
                    f"{self._failed_steps} engine steps failed in a row, the last by: {error}"
                ) from error
            why = f"engine step failed: {type(error).__name__}"
            result = StepOutput({}, {part.request_id: why for part in scheduled.requests})
        self._warm_ups.update(result)
        messages = [_later(message, seconds) for message in messages]
        outputs = self.scheduler.update(scheduled, result, seconds=seconds)
        messages.extend(self.scheduler.take_news())
        if outputs:
            messages.append(StepOutputs(outputs))
        return messages

    def snapshot(self, call_id: int) -> EngineSnapshot:
        """Return all numbers of this moment."""
        blocks = dataclasses.asdict(self.cache.snapshot())
        counters: dict[str, int] = blocks.pop("counters")
        running, waiting = self.scheduler.running_and_waiting()
        return EngineSnapshot(
            call_id=call_id,
            blocks=blocks,
            counters=counters | dataclasses.asdict(self.scheduler.counters) | {"steps": self.num_steps},
            running=count_by_lane(running),
            waiting=count_by_lane([*waiting, *self._without_grammar.values()]),
        )

    def _find_grammar(self, request: Request, grammar: str) -> None:
        """Queue a request whose grammar is known; else it waits for it beside the loop."""
        field = request.sampling.grammar_field
        if self._grammars is None:
            why = "this model's vocabulary cannot be constrained"
            raise InvalidRequestError(f"{field}: got a grammar, wanted none: {why}", param=field)
        known = self._grammars.begin(request.request_id, grammar, tenant=request.tenant)
        if known is None:
            self._without_grammar[request.request_id] = request
        else:
            self._add_with(request, known)

    def _take_grammars(self) -> None:
        """Queue the requests whose grammar is there."""
        if self._grammars is not None:
            for request_id, outcome in self._grammars.take_ready().items():
                self._add_with(self._without_grammar.pop(request_id), outcome)

    def _add_with(self, request: Request, outcome: Grammar | GrammarFailure) -> None:
        if isinstance(outcome, Grammar):
            request.grammar = outcome
            self.scheduler.add(request)
        else:
            field = request.sampling.grammar_field
            why = f"{field}: {outcome.message}"
            self._refused.append(RequestFailed(request.request_id, why, field, outcome.is_retryable))

    def _check(self, message: AddRequest, prompt: Prompt) -> None:
        num_prompt, max_tokens = len(prompt.token_ids), message.sampling.max_tokens
        least = 1 if prompt.reuses else 0  # a prompt may be scored, and that is all
        if max_tokens < least:
            raise InvalidRequestError(f"max_tokens: got {max_tokens}, wanted at least {least}", param="max_tokens")
        if not 1 <= message.sampling.n <= self.scheduler.max_num_seqs:
            raise InvalidRequestError(
                f"n: got {message.sampling.n}, wanted 1 to {self.scheduler.max_num_seqs} (max_num_seqs)",
                param="n",
            )
        vocab_size = self._runner.vocab_size
        for token_id in message.sampling.logit_bias:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequestError(
                    f"logit_bias: got token {token_id}, wanted 0 to {vocab_size - 1}, the model's vocabulary",
                    param="logit_bias",
                )
        limit = min(self._runner.max_model_len, self.cache.max_request_tokens(prompt))
        if num_prompt + max_tokens > limit:
            raise InvalidRequestError(
                f"prompt ({num_prompt} tokens) + max_tokens ({max_tokens}) is {num_prompt + max_tokens}, "
                f"the limit is {limit}",
                param="messages" if num_prompt >= limit else "max_tokens",
            )

    def _fail_stuck(self) -> list[FromEngine]:
        """With nothing running, the first waiting request has the whole pool: if it does not fit now, it never will."""
        if self.scheduler.num_running or not self.scheduler.num_waiting:
            return []
        request_id = self.scheduler.first_waiting_id()
        self.scheduler.abort(request_id)
        why = "the request does not fit into the part of the block pool that is not pinned"
        logger.error("request refused: %s", why)
        return [RequestFailed(request_id, why, "messages")]


def _later(message: FromEngine, seconds: float) -> FromEngine:
    """Say of an admission how long ago it was, so that computing does not count as waiting."""
    return msgspec.structs.replace(message, seconds_ago=seconds) if isinstance(message, Admitted) else message
