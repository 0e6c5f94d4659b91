"""The load of a bad day: many requests of any length, aborts, forks, and a third of the memory they would like."""

from __future__ import annotations

import random

import pytest

from engine.errors import InvalidRequestError
from tests.engine.test_scheduler import all_blocks_unreferenced, prompt_of
from tests.support.chain_runner import ChainRunner, expected_tokens
from tests.support.engine_factory import Transcript, add_request, make_engine

NUM_REQUESTS, MAX_LENGTH, MAX_ANSWER, MAX_SEQS = 200, 4096, 512, 32


@pytest.mark.parametrize("reserve", [256, 0])
def test_load_on_a_third_of_the_pool_all_finish_or_are_refused(reserve: int) -> None:
    rng = random.Random(reserve)
    liked_tokens = MAX_SEQS * MAX_LENGTH // 2  # as many as may run, of average length
    runner = ChainRunner(num_blocks=liked_tokens // 3 // 32, block_size=32, max_model_len=MAX_LENGTH)
    engine, _ = make_engine(
        runner, max_num_seqs=MAX_SEQS, max_num_batched_tokens=2048, prefill_chunk=512, growth_reserve=reserve
    )
    said = Transcript(check_every=50)
    prompts: dict[str, list[int]] = {}
    refused: set[str] = set()
    aborted: set[str] = set()
    for i in range(NUM_REQUESTS):
        length = rng.randint(1, MAX_LENGTH)
        shared = rng.choice((0, length // 2))
        prompt = prompt_of(MAX_LENGTH, seed=rng.randrange(3))[:shared] + prompt_of(length - shared, seed=100 + i)
        n, name = rng.randint(1, 4), str(i)
        try:
            add_request(engine, name, prompt, max_tokens=rng.randint(1, MAX_ANSWER), n=n, seed=i + 1, tenant=str(i % 7))
        except InvalidRequestError:
            refused.add(name)
            continue
        prompts[name] = prompt
        for _ in range(rng.randrange(3)):
            said.step(engine)
        if rng.random() < 0.1:
            victim = rng.choice(sorted(prompts))
            engine.abort(victim)
            aborted.add(victim)
    said.run(engine, max_steps=20_000)
    assert len(prompts) + len(refused) == NUM_REQUESTS
    assert refused
    assert aborted
    assert reserve or engine.scheduler.counters.preemptions > 0, "the pool was not short: the test tests nothing"
    assert not said.failed
    for key, tokens in said.tokens.items():
        name, _, index = key.partition("/")
        assert tokens == expected_tokens(prompts[name], len(tokens), seed=int(name) + 1, index=int(index or 0))
        assert key in said.finish or name in aborted
    assert all_blocks_unreferenced(engine)
