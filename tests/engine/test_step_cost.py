"""The model of a step's time."""

from __future__ import annotations

import random
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulation import Arrival, simulate, step_seconds
from engine.batch import ScheduledRequest, SchedulerOutput
from engine.chunking import MIN_CHUNK
from engine.config import SchedulerConfig
from engine.messages import SamplingParams
from engine.step_cost import StepCost
from tests.engine.test_scheduler import prompt_of
from tests.support.chain_runner import ChainRunner
from tests.support.engine_factory import Transcript, add_request, make_engine


def part(num_tokens: int, context: int) -> ScheduledRequest:
    return ScheduledRequest("x", range(num_tokens), context, [], SamplingParams(max_tokens=1), 0, True)  # type: ignore[arg-type]


def random_step(rng: random.Random) -> SchedulerOutput:
    decoding = [part(1, rng.randrange(4000)) for _ in range(rng.randrange(1, 16))]
    chunks = [part(rng.randrange(2, 500), rng.randrange(8000)) for _ in range(rng.randrange(2))]
    return SchedulerOutput(decoding + chunks)


@pytest.mark.parametrize("factor", [0.01, 0.3, 1.0, 5.0])
def test_step_cost_learns_a_machine_of_another_speed(factor: float) -> None:
    rng = random.Random(0)
    truth = StepCost(fixed=0.02 * factor, row=0.0005 * factor, read=4e-6 * factor, pair=2e-7 * factor, fits=False)
    cost = StepCost()
    for _ in range(1000):
        step = random_step(rng)
        cost.observe(step.requests, step_seconds(truth, step) * rng.uniform(0.95, 1.05))
    for _ in range(50):
        step = random_step(rng)
        assert step_seconds(cost, step) == pytest.approx(step_seconds(truth, step), rel=0.2)


@given(seconds=st.floats(1e-4, 100), context=st.integers(0, 100_000), pair=st.floats(1e-12, 1e-5))
def test_step_cost_tokens_within_is_the_largest_chunk_that_fits(seconds: float, context: int, pair: float) -> None:
    cost = StepCost(pair=pair)
    num_tokens = int(cost.tokens_within(seconds, context))
    assert cost.chunk_seconds(num_tokens, context) <= seconds * 1.001
    assert cost.chunk_seconds(num_tokens + 1, context) > seconds * 0.999


def test_step_cost_no_limit_and_no_time_left() -> None:
    assert StepCost().tokens_within(inf, 10) == inf
    assert StepCost().tokens_within(-0.1, 10) == 0


@given(seconds=st.floats(1e-9, 1e9))
def test_step_cost_one_outlier_cannot_do_much(seconds: float) -> None:
    cost = StepCost()
    rng = random.Random(1)
    for _ in range(100):
        cost.observe((step := random_step(rng)).requests, step_seconds(StepCost(), step))
    before = step_seconds(cost, step)
    cost.observe(step.requests, seconds)
    assert before * 0.6 < step_seconds(cost, step) < before * 1.6


def test_step_cost_that_does_not_fit_stays_as_it_is() -> None:
    cost = StepCost(fits=False)
    cost.observe([part(300, 100)], 9.0)
    assert cost.fixed == StepCost().fixed


def test_admission_tells_for_how_long_the_cached_tokens_would_have_been_computed() -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=64, step_seconds=0.001), deterministic=True)
    for name in ("cold", "hit"):
        add_request(engine, name, prompt_of(200), max_tokens=4)
        said = Transcript().run(engine)
    cached = said.admitted["hit"].num_cached_tokens
    assert cached > 0
    assert 0 < said.admitted["hit"].saved_seconds < StepCost().chunk_seconds(cached, 0) / 4, "this machine's speed"
    add_request(engine, "other", prompt_of(200, seed=1), max_tokens=4)
    assert Transcript().run(engine).admitted["other"].saved_seconds == 0


def test_prompts_get_their_part_of_steps_that_answers_fill() -> None:
    truth = StepCost(read=5e-5, fits=False)  # 8 answers at 1,000 tokens take more than a full step
    load = [Arrival(0.0, "answers", 1000, 200) for _ in range(8)] + [Arrival(60.0, "prompt", 2000, 1)]
    outcome = simulate(load, SchedulerConfig(), truth=truth, scheduler_cost=(cost := StepCost(read=5e-5, fits=False)))
    assert 8 * cost.decode_seconds(1000) > cost.full_step_seconds, "they do not fill a step: a weak test"
    assert outcome.first_token["prompt"][0] < 3 * truth.chunk_seconds(2000, 0)


class NoisyCost(StepCost):
    """Measures badly."""

    rng = random.Random(3)

    def observe(self, requests, seconds):
        super().observe(requests, seconds * self.rng.uniform(0.8, 1.25))


@pytest.mark.parametrize("fixed", [0.01, 0.028])
def test_step_cost_finds_the_fixed_part_while_long_prompts_leave_no_step_to_itself(fixed: float) -> None:
    load = [Arrival(0.0, "any", 7500, 30) for _ in range(30)]
    outcome = simulate(load, SchedulerConfig(), num_blocks=9000, scheduler_cost=(cost := NoisyCost(fixed=fixed)))
    assert outcome.num_steps > 800
    assert 0.014 < cost.fixed < 0.056


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_steps_keep_to_their_time_once_the_machine_is_known(data: st.DataObject) -> None:
    factor = data.draw(st.sampled_from([0.1, 0.5, 1.0, 2.0]))
    truth = StepCost(fixed=0.028 * factor, row=factor / 1200, read=2e-6 * factor, pair=1e-7 * factor, fits=False)
    lengths = data.draw(st.lists(st.integers(1, 3000), min_size=2, max_size=8))
    load = [Arrival(0.3 * i, "any", length, 8) for i, length in enumerate(lengths)]
    config = SchedulerConfig(max_num_seqs=4, max_step_seconds=0.25)
    warm = simulate([Arrival(0.0, "warm", 6000, 40)], config, truth=truth, scheduler_cost=(cost := StepCost()))
    assert warm.num_steps > 40
    outcome = simulate(load, config, truth=truth, scheduler_cost=cost)
    limit = max(0.25, truth.fixed + 2 * truth.chunk_seconds(MIN_CHUNK, 3000) + 4 * truth.decode_seconds(3000))
    assert max(outcome.gaps) <= 1.25 * limit
