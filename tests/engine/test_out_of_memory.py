"""Steps that run out of memory: fewer requests run, none gets a wrong token, and only one that is alone ends."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import SchedulerOutput, StepOutput
from engine.calls import WarmPrompt, WarmRefusal
from engine.errors import is_out_of_memory
from tests.support.chain_runner import ChainRunner, expected_tokens
from tests.support.engine_factory import Transcript, add_request, hashed, make_engine

SHARED = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18]


class PoorRunner(ChainRunner):
    """Has memory for so many requests, or tokens, in a step."""

    def __init__(
        self, *, max_requests: int = 99, max_tokens: int = 9999, copies_first: bool = True, **options: int
    ) -> None:
        super().__init__(**options)
        self.max_requests, self.max_tokens, self.copies_first = max_requests, max_tokens, copies_first
        self.error: Exception = MemoryError()
        self.num_failed = 0

    def execute(self, output: SchedulerOutput) -> StepOutput:
        num_tokens = sum(part.num_new_tokens for part in output.requests)
        if len(output.requests) <= self.max_requests and num_tokens <= self.max_tokens:
            return super().execute(output)
        self.num_failed += 1
        if self.copies_first:
            super().execute(SchedulerOutput([], output.copies))
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes"),
    ],
    ids=["python", "cuda", "cpu"],
)
def test_requests_that_do_not_fit_beside_others_wait_and_all_finish(error: Exception) -> None:
    assert is_out_of_memory(error)
    engine, runner = make_engine(PoorRunner(max_requests=2))
    assert isinstance(runner, PoorRunner)
    runner.error = error
    for i in range(6):
        add_request(engine, str(i), [*SHARED, 100 + i], max_tokens=10)
    said = Transcript().run(engine)
    assert not said.failed
    assert {i: said.tokens[str(i)] for i in range(6)} == {i: expected_tokens([*SHARED, 100 + i], 10) for i in range(6)}
    assert runner.num_failed > 0
    assert engine.scheduler.counters.preemptions >= runner.num_failed
    assert engine.cache.snapshot().active_blocks == 0


def test_a_request_that_is_alone_ends_with_an_error_that_says_to_try_again_and_the_next_is_served() -> None:
    engine, _ = make_engine(PoorRunner(max_tokens=12))
    add_request(engine, "long", list(range(1, 40)))
    said = Transcript().run(engine)
    assert said.failed["long"].retryable
    assert said.failed["long"].param is None
    add_request(engine, "short", [1, 2, 3])
    assert Transcript().run(engine).tokens["short"] == expected_tokens([1, 2, 3], 8)
    assert engine.cache.snapshot().active_blocks == 0


def test_a_request_beside_a_warm_up_goes_on_and_the_warm_up_is_given_up() -> None:
    engine, _ = make_engine(PoorRunner(max_requests=1))
    said = Transcript()
    add_request(engine, "a", [1, 2, 3], max_tokens=5)
    beside = said.call(engine, WarmPrompt(**hashed(engine, [5] * 30)))
    said.run(engine)
    assert said.tokens["a"] == expected_tokens([1, 2, 3], 5)
    assert said.outcomes[beside].refusal is WarmRefusal.FAILED
    alone = said.call(engine, WarmPrompt(**hashed(engine, [5] * 30)))
    said.run(engine)
    assert said.outcomes[alone].refusal is None


def test_more_run_again_when_memory_is_back() -> None:
    engine, runner = make_engine(PoorRunner(max_requests=1), max_num_seqs=4)
    for i in range(4):
        add_request(engine, str(i), [i + 1] * 5, max_tokens=3)
    Transcript().run(engine)
    assert isinstance(runner, PoorRunner)
    runner.max_requests, runner.steps = 99, []
    for i in range(8):
        add_request(engine, f"again {i}", [i + 50] * 5, max_tokens=3)
    Transcript().run(engine)
    assert max(len(step.requests) for step in runner.steps) == 4


def test_other_errors_are_no_shortage_of_memory() -> None:
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert not is_out_of_memory(ValueError("out of memory"))
    engine, runner = make_engine()
    runner.fail_next = RuntimeError("shape mismatch")
    add_request(engine, "a", [1, 2, 3])
    assert not Transcript().run(engine).failed["a"].retryable


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_shortage_gives_right_answers_or_an_error_and_leaks_nothing(data: st.DataObject) -> None:
    runner = PoorRunner(
        max_requests=data.draw(st.integers(1, 4), label="requests"),
        max_tokens=data.draw(st.integers(8, 40), label="tokens"),
        copies_first=data.draw(st.booleans(), label="copies_first"),
        num_blocks=data.draw(st.integers(16, 40), label="blocks"),
    )
    ratio = data.draw(st.sampled_from([0.0, 0.3, 1.0]), label="max_shared_ratio")
    engine, _ = make_engine(runner, growth_reserve=8, max_shared_ratio=ratio, max_pinned_ratio=0.0)
    prompts = {}
    said = Transcript()
    for i in range(data.draw(st.integers(2, 8), label="requests sent")):
        shared = data.draw(st.integers(0, len(SHARED)), label="shared")
        prompts[str(i)] = [*SHARED[:shared], *data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=20))]
        if data.draw(st.booleans(), label="warm-up"):
            said.call(engine, WarmPrompt(**hashed(engine, prompts[str(i)])))
        add_request(engine, str(i), prompts[str(i)], max_tokens=8, ignore_eos=True)
        for _ in range(data.draw(st.integers(0, 4), label="steps")):
            said.step(engine)
    said.run(engine)
    for request_id, prompt in prompts.items():
        if request_id in said.failed:
            assert said.failed[request_id].retryable
        else:
            assert said.tokens[request_id] == expected_tokens(prompt, 8)
    assert engine.cache.snapshot().active_blocks == 0
