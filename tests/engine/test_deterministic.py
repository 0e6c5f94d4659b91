"""`--deterministic`: a request's logits have the same bits however it was computed. Each test sees that it was.

Logits are compared at every position that was sampled, through the real engine: scheduler, prefix cache, kernels.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.errors import ConfigError
from engine.llm_engine import LLMEngine
from engine.model_runner import ModelRunner
from engine.sampler import Sampler
from tests.engine.test_model_runner import make_prompt
from tests.engine.tiny_model import save_tiny_model
from tests.support.engine_factory import Transcript, add_request

pytestmark = pytest.mark.usefixtures("all_cores")

SETUPS = [
    ("float32", "auto", "none"),
    ("bfloat16", "int8/hadamard", "none"),
    ("bfloat16", "auto", "int8"),
    ("auto", "int8/per_token", "int8"),
]
Setup = tuple[str, str, str]
"""dtype, KV cache, weights."""
MAX_TOKENS = 12
PROMPT = make_prompt(75)
Logits = dict[int, torch.Tensor]
"""By position of the token that they choose."""


class PositionSampler(Sampler):
    """Samples, and keeps the logits of each request by position."""

    def __init__(self) -> None:
        self.logits: dict[str, Logits] = {}

    def sample(self, logits, requests):
        for row, request in zip(logits.clone(), requests, strict=True):
            position = request.num_computed_tokens + request.num_new_tokens
            known = self.logits.setdefault(request.request_id, {}).setdefault(position, row)
            assert torch.equal(known, row), "sampled twice, differently"
        return super().sample(logits, requests)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), hidden_size=96, intermediate_size=544, head_dim=32)


def make_engine(
    folder: Path, setup: Setup, *, deterministic: bool = True, num_blocks: int = 256, chunk: int = 128
) -> tuple[LLMEngine, PositionSampler]:
    dtype, kv_cache_dtype, quantization = setup
    sampler = PositionSampler()
    config = EngineConfig(
        model_path=str(folder),
        dtype=dtype,
        device="cpu",
        quantization=quantization,
        cache=CacheConfig(block_size=8, num_blocks=num_blocks, kv_cache_dtype=kv_cache_dtype, growth_reserve=0),
        scheduler=SchedulerConfig(
            max_num_seqs=8, max_num_batched_tokens=512, prefill_chunk=chunk, deterministic=deterministic
        ),
    )
    return LLMEngine(config, ModelRunner(config, sampler=sampler), hash_seed=7), sampler


def ask(engine: LLMEngine, request_id: str, prompt: list[int], max_tokens: int = MAX_TOKENS) -> None:
    add_request(engine, request_id, prompt, max_tokens=max_tokens, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module", params=SETUPS, ids="-".join)
def case(request, tiny) -> tuple[Path, Setup, Logits]:
    """A setup and the logits of the prompt alone in a cold engine, in one chunk."""
    engine, sampler = make_engine(tiny, request.param)
    ask(engine, "cold", PROMPT)
    transcript = Transcript().run(engine)
    assert transcript.admitted["cold"].num_cached_tokens == 0
    return tiny, request.param, sampler.logits["cold"]


def assert_same(got: Logits, expected: Logits) -> None:
    assert got.keys() == expected.keys()
    differing = [position for position in got if not torch.equal(got[position], expected[position])]
    assert differing == []


@pytest.mark.parametrize("chunk", [1, 7, 32])
def test_chunked_equals_cold(case, chunk):
    folder, setup, cold = case
    engine, sampler = make_engine(folder, setup, chunk=chunk)
    ask(engine, "chunked", PROMPT)
    Transcript().run(engine)
    assert engine.num_steps == -(-len(PROMPT) // chunk) + MAX_TOKENS - 1
    assert_same(sampler.logits["chunked"], cold)


def test_hit_equals_cold(case):
    folder, setup, cold = case
    engine, sampler = make_engine(folder, setup)
    transcript = Transcript()
    for name in ("first", "hit"):
        ask(engine, name, PROMPT)
        transcript.run(engine)
    assert transcript.admitted["hit"].num_cached_tokens == 72  # full blocks; a tail of 2 is not worth a copy
    assert_same(sampler.logits["hit"], cold)


@pytest.mark.parametrize("shared", [24, 44])
def test_partial_hit_equals_cold(case, shared):
    folder, setup, cold = case
    engine, sampler = make_engine(folder, setup)
    transcript = Transcript()
    for name, prompt in (("other", PROMPT[:shared] + make_prompt(30, 5)), ("partial", PROMPT)):
        ask(engine, name, prompt)
        transcript.run(engine)
    assert transcript.admitted["partial"].num_cached_tokens == shared // 8 * 8  # a tail of 4 is not worth a copy
    assert_same(sampler.logits["partial"], cold)


def test_hit_that_ends_in_a_copied_tail_equals_cold(case):
    folder, setup, cold = case
    engine, sampler = make_engine(folder, setup)
    transcript = Transcript()
    ask(engine, "shorter", PROMPT[:-4])
    transcript.run(engine)
    ask(engine, "copied", PROMPT)
    transcript.run(engine)
    assert transcript.admitted["copied"].num_cached_tokens >= 64
    assert_same(sampler.logits["copied"], cold)


def test_batched_equals_cold_wherever_it_stands_in_the_batch(case):
    folder, setup, cold = case
    engine, sampler = make_engine(folder, setup, chunk=40)
    for index in range(6):
        ask(engine, f"before-{index}", make_prompt(11 + 23 * index, index + 1), 20)
    transcript = Transcript()
    for _ in range(3):
        transcript.step(engine)
    ask(engine, "batched", PROMPT)
    transcript.run(engine)
    assert_same(sampler.logits["batched"], cold)


def test_sharers_of_a_prefix_equal_cold(case):
    folder, setup, cold = case
    engine, sampler = make_engine(folder, setup)
    transcript = Transcript()
    ask(engine, "owner", PROMPT[:64])
    transcript.run(engine)
    for index in range(5):
        ask(engine, f"sharer-{index}", PROMPT[:64] + make_prompt(9, index + 1))
    ask(engine, "sharer", PROMPT)
    transcript.run(engine)
    assert transcript.admitted["sharer"].num_cached_tokens >= 64
    assert_same(sampler.logits["sharer"], cold)


def test_preempted_and_resumed_equals_cold(case):
    folder, setup, cold = case
    engine, sampler = make_engine(folder, setup, num_blocks=19)
    ask(engine, "older", make_prompt(60, 9), 40)
    ask(engine, "preempted", PROMPT)
    transcript = Transcript().run(engine)
    assert transcript.finish == {"older": "length", "preempted": "length"}
    assert engine.scheduler.counters.preemptions > 0
    assert_same(sampler.logits["preempted"], cold)


def test_answers_forked_from_one_prefill_equal_cold(case):
    folder, setup, cold = case
    engine, sampler = make_engine(folder, setup)
    add_request(engine, "forked", PROMPT, max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True, n=3)
    Transcript().run(engine)
    assert engine.scheduler.counters.prompt_tokens == len(PROMPT)
    assert len(sampler.logits) == 3
    for logits in sampler.logits.values():
        assert_same(logits, cold)


def test_without_the_option_some_way_of_computing_differs(tiny):
    # else the tests above could not fail
    setup = ("bfloat16", "auto", "none")
    seen = []
    for chunk in (1, 7, 32, 128):
        engine, sampler = make_engine(tiny, setup, deterministic=False, chunk=chunk)
        ask(engine, "request", PROMPT)
        Transcript().run(engine)
        seen.append(torch.stack([sampler.logits["request"][p] for p in sorted(sampler.logits["request"])]))
    assert any(not torch.equal(seen[0], other) for other in seen[1:])


def test_torch_kernels_are_refused(tmp_path):
    folder = save_tiny_model(tmp_path, head_dim=24)  # no multiple of 16: numba's kernels do not take it
    with pytest.raises(ConfigError, match="--deterministic"):
        make_engine(folder, ("float32", "auto", "none"))
