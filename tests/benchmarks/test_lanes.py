"""The two-lane load over a runner without a model: it counts what it should, and its bars can be missed."""

from __future__ import annotations

import pytest

from benchmarks import lanes
from benchmarks.lanes import Outcome, print_bars, run
from engine.batch import SchedulerOutput, StepOutput
from tests.support.chain_runner import ChainRunner
from tests.support.engine_factory import make_config


class Clock:
    """Stands in for the module `time`: a look costs a little, a step 10 ms."""

    now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Runner(ChainRunner):
    max_num_seqs = 8

    def __init__(self, clock: Clock) -> None:
        super().__init__(num_blocks=512)
        self.clock = clock

    def execute(self, output: SchedulerOutput) -> StepOutput:
        self.clock.sleep(0.01)
        return super().execute(output)


def test_short_requests_are_timed_from_when_they_were_due_and_long_tokens_counted(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(lanes, "time", clock)
    monkeypatch.setattr(lanes, "LONG_TOKENS", 400)
    runner = Runner(clock)
    alone = run(make_config(max_num_seqs=8), runner, seconds=4.0, long_in_system=0, warm_up=1.0)
    assert len(alone.ttft) == 10  # one every 0.4 s
    assert all(0.01 <= seconds <= 0.06 for seconds in alone.ttft)  # a few steps, chunks of 16 tokens
    assert alone.long_tokens_per_second == 0
    mixed = run(make_config(max_num_seqs=8), runner, seconds=4.0, long_in_system=2, warm_up=1.0)
    assert len(mixed.ttft) == 10
    assert min(mixed.ttft) >= min(alone.ttft) - 0.001
    assert 0 < mixed.long_tokens_per_second <= 6400  # at most all tokens of every step


@pytest.mark.parametrize(
    ("two", "one", "holds"),
    [
        (Outcome([0.3], 900), Outcome([2.0], 1000), True),
        (Outcome([0.5], 900), Outcome([2.0], 1000), False),  # 5 times alone
        (Outcome([0.3], 900), Outcome([0.9], 1000), False),  # a third of one lane
        (Outcome([0.3], 800), Outcome([2.0], 1000), False),  # a fifth of the throughput lost
    ],
)
def test_bars(two, one, holds):
    assert print_bars(Outcome([0.1], 0), two, one) is holds
