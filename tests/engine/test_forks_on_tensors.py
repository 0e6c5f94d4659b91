"""`n` answers by a real forward pass: the copies are performed, and each answer is the one that its seed gives alone."""

from __future__ import annotations

import pytest

from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.llm_engine import LLMEngine
from engine.model_runner import ModelRunner
from engine.request import seed_of_answer
from tests.engine.test_model_runner import make_prompt
from tests.engine.tiny_model import save_tiny_model
from tests.support.engine_factory import Transcript, add_request

N, SEED, MAX_TOKENS = 4, 3, 10


def make_config(folder, cap: float) -> EngineConfig:
    return EngineConfig(
        model_path=str(folder),
        dtype="float32",
        device="cpu",
        cache=CacheConfig(block_size=8, num_blocks=64, max_shared_ratio=cap, max_pinned_ratio=0.0),
        scheduler=SchedulerConfig(max_num_seqs=8, prefill_chunk=16),
    )


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    return ModelRunner(make_config(save_tiny_model(tmp_path_factory.mktemp("tiny")), cap=1.0))


@pytest.mark.parametrize("cap", [0.0, 1.0], ids=["copies", "shares"])
@pytest.mark.parametrize("length", [37, 40])
def test_forks_give_the_answers_of_requests_of_their_own(runner, length: int, cap: float) -> None:
    options = {"max_tokens": MAX_TOKENS, "temperature": 1.0, "ignore_eos": True}
    config = make_config("-", cap)
    engine = LLMEngine(config, runner, hash_seed=7)
    add_request(engine, "all", make_prompt(length), n=N, seed=SEED, **options)
    said = Transcript().run(engine)
    assert engine.cache.snapshot().counters["copies"] >= N - 1
    alone = LLMEngine(config, runner, hash_seed=7)
    for index in range(N):
        add_request(alone, str(index), make_prompt(length), seed=seed_of_answer(SEED, index), **options)
        expected = Transcript().run(alone).tokens[str(index)]
        assert said.tokens[f"all/{index}" if index else "all"] == expected
    assert len({tuple(tokens) for tokens in said.tokens.values()}) == N
