"""The two-lane load over a runner without a model: it counts what it should, and its bars can be missed."""

from __future__ import annotations

import pytest

from benchmarks import lanes
from benchmarks.lanes import Outcome, print_bars, run
from tests.support.chain_runner import ChainRunner
from tests.support.engine_factory import make_config


class Runner(ChainRunner):
    max_num_seqs = 8


@pytest.mark.parametrize("long_in_system", [0, 2])
def test_short_requests_are_timed_and_long_tokens_counted(long_in_system, monkeypatch):
    monkeypatch.setattr(lanes, "LONG_TOKENS", 400)
    monkeypatch.setattr(lanes, "SHORT_EVERY_SECONDS", 0.02)
    runner = Runner(num_blocks=512, step_seconds=0.001)
    found = run(make_config(), runner, seconds=0.4, long_in_system=long_in_system, warm_up=0.05)
    assert len(found.ttft) >= 15
    assert all(0 < seconds < 60 for seconds in found.ttft)
    assert (found.long_tokens_per_second > 0) == (long_in_system > 0)
    counted = [part for step in runner.steps for part in step.requests if part.request_id.startswith("long")]
    assert bool(counted) == (long_in_system > 0)


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
