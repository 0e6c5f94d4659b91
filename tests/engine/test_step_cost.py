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
from engine.step_cost import MAX_ERROR, RATE, StepCost


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


@given(seconds=st.floats(1e-4, 100), context=st.integers(0, 100_000), pair=st.floats(0, 1e-5))
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
    step = SchedulerOutput([part(300, 100), part(1, 500)])
    before = step_seconds(cost, step)
    cost.observe(step.requests, seconds)
    assert before * MAX_ERROR**-RATE * 0.99 < step_seconds(cost, step) < before * MAX_ERROR**RATE * 1.01


def test_step_cost_that_does_not_fit_stays_as_it_is() -> None:
    cost = StepCost(fits=False)
    cost.observe([part(300, 100)], 9.0)
    assert cost.fixed == StepCost().fixed


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_steps_keep_to_their_time_once_the_machine_is_known(data: st.DataObject) -> None:
    factor = data.draw(st.sampled_from([0.1, 0.5, 1.0, 2.0]))
    truth = StepCost(fixed=0.028 * factor, row=factor / 1200, read=2e-6 * factor, pair=1e-7 * factor, fits=False)
    lengths = data.draw(st.lists(st.integers(1, 3000), min_size=2, max_size=8))
    load = [Arrival(0.3 * i, "any", length, 8) for i, length in enumerate(lengths)]
    config = SchedulerConfig(max_num_seqs=4)
    warm = simulate([Arrival(0.0, "warm", 6000, 40)], config, truth=truth, scheduler_cost=(cost := StepCost()))
    assert warm.num_steps > 40
    outcome = simulate(load, config, truth=truth, scheduler_cost=cost)
    limit = max(0.25, truth.fixed + 2 * truth.chunk_seconds(MIN_CHUNK, 3000) + 4 * truth.decode_seconds(3000))
    assert max(outcome.gaps) <= 1.25 * limit
