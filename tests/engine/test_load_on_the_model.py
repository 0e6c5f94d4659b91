"""The load of a bad day (see `test_load`) on the real model: every request ends or is refused, no step fails."""

from __future__ import annotations

import logging
import random

import pytest

from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.errors import InvalidRequestError
from engine.llm_engine import LLMEngine
from engine.model_runner import ModelRunner
from tests.engine.test_scheduler import all_blocks_unreferenced, prompt_of
from tests.support.engine_factory import Transcript, add_request
from tests.support.real_model import model_folder

NUM_REQUESTS, MAX_LENGTH, MAX_ANSWER, MAX_SEQS = 200, 4096, 24, 16


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(1800)
def test_load_on_the_model_all_finish_or_are_refused(caplog) -> None:
    rng = random.Random(0)
    config = EngineConfig(
        model_path=str(model_folder()),
        device="cpu",
        max_model_len=MAX_LENGTH,
        cache=CacheConfig(num_blocks=MAX_SEQS * MAX_LENGTH // 2 // 3 // 32, growth_reserve=0),
        scheduler=SchedulerConfig(max_num_seqs=MAX_SEQS),
    )
    engine = LLMEngine(config, ModelRunner(config), hash_seed=7)
    said = Transcript(check_every=20)
    answers: dict[str, int] = {}
    refused: set[str] = set()
    aborted: set[str] = set()
    for i in range(NUM_REQUESTS):
        length = int(MAX_LENGTH ** rng.uniform(0.3, 1.0))  # 1 to 4k, more short ones than long ones
        shared = rng.choice((0, length // 2))
        prompt = prompt_of(MAX_LENGTH, seed=rng.randrange(3))[:shared] + prompt_of(length - shared, seed=100 + i)
        n, name = rng.randint(1, 4), str(i)
        try:
            add_request(
                engine,
                name,
                prompt,
                max_tokens=rng.randint(1, MAX_ANSWER),
                n=n,
                seed=i,
                tenant=str(i % 7),
                ignore_eos=True,
            )
        except InvalidRequestError:
            refused.add(name)
            continue
        answers[name] = n
        for _ in range(rng.randrange(2)):
            said.step(engine)
        if rng.random() < 0.1:
            victim = rng.choice(sorted(answers))
            engine.abort(victim)
            aborted.add(victim)
    with caplog.at_level(logging.WARNING):
        said.run(engine, max_steps=20_000)
    assert not caplog.records, "a step failed"
    assert not said.failed
    assert aborted
    assert len(answers) + len(refused) == NUM_REQUESTS
    for name in answers.keys() - aborted:
        assert sum(key.partition("/")[0] == name for key in said.finish) == answers[name]
    assert all_blocks_unreferenced(engine)
