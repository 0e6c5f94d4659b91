"""The step benchmark without a model: its steps are distinct, and its fit finds what was put in."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.step_cost import BATCHES, CONTEXTS, Stopwatch, decode_step, fit, plot


def test_requests_of_a_step_have_blocks_of_their_own():
    step = decode_step(batch=4, context=100, block_size=32)
    blocks = list(itertools.chain(*(request.block_ids for request in step.requests)))
    assert sorted(blocks) == list(range(16))
    assert all(request.num_computed_tokens == 100 and request.sample for request in step.requests)


def test_fit_finds_the_constants_and_the_plot_is_written(tmp_path):
    seconds = {(b, c): 0.02 + 0.001 * b + 3e-7 * b * c for b in BATCHES for c in CONTEXTS}
    constants, worst = fit(seconds)
    assert constants == pytest.approx([0.02, 0.001, 3e-7])
    assert worst < 1e-6
    plot(seconds, constants, tmp_path / "step.png")
    assert (tmp_path / "step.png").stat().st_size > 1000


def test_stopwatch_counts_a_method_that_raises():
    class Owner:
        def work(self) -> None:
            raise KeyError

    owner, watch = Owner(), Stopwatch()
    watch.wrap(owner, "work")
    with pytest.raises(KeyError):
        owner.work()
    assert watch.seconds > 0
