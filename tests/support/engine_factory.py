"""Small engines and requests for tests."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine.calls import Call, Order, Outcome, Reply
from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.llm_engine import FromEngine, LLMEngine
from engine.messages import (
    AddRequest,
    Admitted,
    PromptLogprobs,
    RequestFailed,
    SamplingParams,
    StepOutputs,
    TokenLogprobs,
)
from prefixcache.hashing import hash_blocks, namespace
from prefixcache.interface import Scope
from tests.support.chain_runner import ChainRunner


def make_config(
    *,
    block_size: int = 8,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    prefill_chunk: int = 16,
    long_prefill_token_threshold: int = 512,
    max_step_seconds: float | None = 0.0,
    deterministic: bool = False,
    **cache: object,
) -> EngineConfig:
    """An engine config with small numbers and no clock in it; `cache` goes to CacheConfig."""
    return EngineConfig(
        model_path="-",
        cache=CacheConfig(block_size=block_size, **cache),  # type: ignore[arg-type]
        scheduler=SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            prefill_chunk=prefill_chunk,
            long_prefill_token_threshold=long_prefill_token_threshold,
            max_step_seconds=max_step_seconds,
            deterministic=deterministic,
        ),
    )


def make_engine(
    runner: ChainRunner | None = None, *, clock: Callable[[], float] = time.monotonic, **config: object
) -> tuple[LLMEngine, ChainRunner]:
    """An engine over a chain runner."""
    runner = runner or ChainRunner()
    settings = make_config(block_size=runner.block_size, **config)  # type: ignore[arg-type]
    return LLMEngine(settings, runner, hash_seed=7, clock=clock), runner


def hashed(engine: LLMEngine, prompt: Sequence[int], *, scope: str = "public") -> dict[str, Any]:
    """The fields of a `HashedPrompt`, as the gateway makes them."""
    token_ids = np.asarray(prompt, dtype=np.int32)
    scopes = (Scope(namespace({"model": "test"}, scope=scope), 0),)
    return {
        "token_ids": token_ids.tobytes(),
        "block_hashes": hash_blocks(
            token_ids, block_size=engine.cache.config.block_size, scopes=scopes, seed=engine.hash_seed
        ),
        "scopes": [(scope.namespace, scope.num_blocks) for scope in scopes],
        "hash_epoch": engine.hash_epoch,
    }


def add_request(
    engine: LLMEngine,
    request_id: str,
    prompt: Sequence[int],
    *,
    max_tokens: int = 8,
    scope: str = "public",
    tenant: str = "",
    **sampling: object,
) -> None:
    """Send a prompt as the gateway would."""
    engine.add(
        AddRequest(
            request_id=request_id,
            **hashed(engine, prompt, scope=scope),
            sampling=SamplingParams(max_tokens=max_tokens, **sampling),  # type: ignore[arg-type]
            tenant=tenant,
        )
    )


class Transcript:
    """What an engine said, by request; answer i > 0 of a request is at `request_id/i`."""

    def __init__(self, *, check_every: int = 1) -> None:
        self._check_every = check_every
        self._num_steps = 0
        self.tokens: dict[str, list[int]] = {}
        self.finish: dict[str, str] = {}
        self.admitted: dict[str, Admitted] = {}
        self.prompts: dict[str, list[TokenLogprobs]] = {}
        """Told of each prompt."""
        self.failed: dict[str, RequestFailed] = {}
        self.outcomes: dict[int, Outcome] = {}
        self._call_ids = itertools.count()

    def call(self, engine: LLMEngine, order: Order) -> int:
        """Give an order and take what it is answered at once; returns the call's number."""
        call_id = next(self._call_ids)
        self._take(engine.call(Call(call_id, order)))
        return call_id

    def ask(self, engine: LLMEngine, order: Order) -> Any:
        """Give an order that is answered at once."""
        return self.outcomes[self.call(engine, order)]

    def step(self, engine: LLMEngine) -> None:
        """Run one step and take its messages."""
        self._take(engine.step())
        self._num_steps += 1
        if self._num_steps % self._check_every == 0:
            engine.cache.check_integrity()

    def _take(self, messages: Sequence[FromEngine]) -> None:
        for message in messages:
            match message:
                case Admitted():
                    assert message.request_id not in self.admitted, "admitted twice"
                    self.admitted[message.request_id] = message
                case PromptLogprobs(request_id, position, logprobs):
                    told = self.prompts.setdefault(request_id, [])
                    assert position - 1 <= len(told), "a gap"
                    assert request_id not in self.tokens, "after the answer began"
                    told[position - 1 :] = logprobs
                case RequestFailed():
                    self.failed[message.request_id] = message
                case Reply(call_id, outcome):
                    assert call_id not in self.outcomes, "answered twice"
                    self.outcomes[call_id] = outcome
                case StepOutputs(outputs):
                    for output in outputs:
                        key = f"{output.request_id}/{output.index}" if output.index else output.request_id
                        assert key not in self.finish, "token after the end"
                        self.tokens.setdefault(key, []).extend(output.token_ids)
                        if output.finish_reason:
                            self.finish[key] = output.finish_reason

    def run(self, engine: LLMEngine, *, max_steps: int = 10_000) -> Transcript:
        """Step until there is no work."""
        for _ in range(max_steps):
            if not engine.has_work:
                return self
            self.step(engine)
        raise AssertionError(f"engine still busy after {max_steps} steps")
