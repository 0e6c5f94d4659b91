"""Couples scheduler, prefix cache and model runner; the worker's loop calls `step()`.

Knows nothing of processes and sockets. Everything that goes wrong with one request ends that request, with a reason.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from time import perf_counter
from typing import Protocol

import numpy as np

from engine.batch import SchedulerOutput, StepOutput
from engine.config import EngineConfig
from engine.errors import InvalidRequestError, is_out_of_memory
from engine.kv_layout import PER_CHANNEL
from engine.messages import AddRequest, Admitted, EngineSnapshot, RequestFailed, StepOutputs
from engine.request import Request, seed_sequence
from engine.scheduler import Scheduler
from prefixcache import PrefixCache
from prefixcache.interface import Namespace, PrefixCacheConfig, Prompt, Scope

logger = logging.getLogger(__name__)

StepMessage = Admitted | StepOutputs | RequestFailed

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

    def __init__(self, config: EngineConfig, runner: Runner, *, hash_seed: int | None = None) -> None:
        self._config = config
        self._runner = runner
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
                max_shared_ratio=cache.max_shared_ratio,
                max_pinned_ratio=cache.max_pinned_ratio,
                growth_reserve=cache.growth_reserve,
                reuse_partial_blocks=cache.kv_cache_dtype != PER_CHANNEL,
            )
        )
        self.scheduler = Scheduler(config.scheduler, self.cache, eos_token_ids=runner.eos_token_ids)
        self._seeds = seed_sequence(int.from_bytes(os.urandom(8), "little"))
        self._failed_steps = 0
        self.num_steps = 0

    @property
    def has_work(self) -> bool:
        """True while a request waits or runs."""
        return self.scheduler.num_running + self.scheduler.num_waiting > 0

    def add(self, message: AddRequest) -> None:
        """Queue one generation.

        Raises: InvalidRequestError: it can never be served, or is malformed.
        """
        token_ids = np.frombuffer(message.token_ids, dtype="<i4")
        self._check(message, token_ids)
        prompt = Prompt(
            token_ids=token_ids,
            block_hashes=message.block_hashes,
            scopes=tuple(Scope(Namespace(namespace), num_blocks) for namespace, num_blocks in message.scopes),
            hash_epoch=message.hash_epoch,
        )
        seed = message.sampling.seed if message.sampling.seed is not None else next(self._seeds)
        self.scheduler.add(Request(message.request_id, prompt, message.sampling, seed=seed, tenant=message.tenant))

    def abort(self, request_id: str) -> None:
        """Forget a request, if it is still there."""
        self.scheduler.abort(request_id)

    def step(self) -> list[StepMessage]:
        """Run one step and return what the gateway must hear of it.

        Raises: RuntimeError: several steps failed in a row, so that the engine itself must be at fault.
        """
        scheduled = self.scheduler.schedule()
        messages: list[StepMessage] = [*self.scheduler.take_admitted(), *self.scheduler.take_failed()]
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
                self.scheduler.retry_with_less(scheduled)
                return [*messages, *self.scheduler.take_failed()]
            logger.exception("engine step %d failed", self.num_steps)
            self._failed_steps += 1
            if self._failed_steps >= MAX_FAILED_STEPS:
                raise RuntimeError(
                    f"{self._failed_steps} engine steps failed in a row, the last by: {error}"
                ) from error
            why = f"engine step failed: {type(error).__name__}"
            result = StepOutput({}, {part.request_id: why for part in scheduled.requests})
        outputs = self.scheduler.update(scheduled, result, seconds=seconds)
        if outputs:
            messages.append(StepOutputs(outputs))
        messages.extend(self.scheduler.take_failed())
        return messages

    def snapshot(self, call_id: int) -> EngineSnapshot:
        """Return all numbers of this moment."""
        blocks = dataclasses.asdict(self.cache.snapshot())
        counters: dict[str, int] = blocks.pop("counters")
        return EngineSnapshot(
            call_id=call_id,
            blocks=blocks,
            counters=counters | dataclasses.asdict(self.scheduler.counters) | {"steps": self.num_steps},
            num_running=self.scheduler.num_running,
            num_waiting=self.scheduler.num_waiting,
        )

    def _check(self, message: AddRequest, token_ids: np.ndarray[tuple[int], np.dtype[np.int32]]) -> None:
        num_prompt, max_tokens = len(token_ids), message.sampling.max_tokens
        if num_prompt == 0:
            raise InvalidRequestError("the prompt has no tokens", param="messages")
        if max_tokens < 1:
            raise InvalidRequestError(f"max_tokens: got {max_tokens}, wanted at least 1", param="max_tokens")
        if not 1 <= message.sampling.n <= self.scheduler.max_num_seqs:
            raise InvalidRequestError(
                f"n: got {message.sampling.n}, wanted 1 to {self.scheduler.max_num_seqs} (max_num_seqs)",
                param="n",
            )
        if not message.scopes or any(len(namespace) != 32 for namespace, _ in message.scopes):
            raise InvalidRequestError("scopes: wanted at least one, each with a namespace of 32 bytes")
        if int(token_ids.min()) < 0 or int(token_ids.max()) >= self._runner.vocab_size:
            raise InvalidRequestError(f"token ids: wanted 0 to {self._runner.vocab_size - 1}", param="messages")
        limit = min(self._runner.max_model_len, self.cache.max_request_tokens())
        if num_prompt + max_tokens > limit:
            raise InvalidRequestError(
                f"prompt ({num_prompt} tokens) + max_tokens ({max_tokens}) is {num_prompt + max_tokens}, "
                f"the limit is {limit}",
                param="messages" if num_prompt >= limit else "max_tokens",
            )

    def _fail_stuck(self) -> list[StepMessage]:
        """With nothing running, the first waiting request has the whole pool: if it does not fit now, it never will."""
        if self.scheduler.num_running or not self.scheduler.num_waiting:
            return []
        request_id = self.scheduler.first_waiting_id()
        self.scheduler.abort(request_id)
        why = "the request does not fit into the part of the block pool that is not pinned"
        logger.error("request refused: %s", why)
        return [RequestFailed(request_id, why, "messages")]
