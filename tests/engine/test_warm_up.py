"""Prompts that are computed ahead of use: who finds them, what they cost, and for whom they step aside."""

from __future__ import annotations

import pytest

from engine.batch import SchedulerOutput
from engine.calls import Call, PinPrompt, Warmed, WarmPrompt, WarmRefusal
from engine.warm_up import REQUEST_ID
from tests.engine.test_scheduler import all_blocks_unreferenced, prompt_of
from tests.support.chain_runner import ChainRunner, expected_tokens
from tests.support.engine_factory import Transcript, add_request, hashed, make_engine


def warm_up_tokens(step: SchedulerOutput) -> int:
    return sum(part.num_new_tokens for part in step.requests if part.request_id == REQUEST_ID)


@pytest.mark.parametrize("chunk", [0, 1, 7, 16], ids=lambda chunk: f"chunk{chunk}")
@pytest.mark.parametrize("length", [1, 7, 8, 9, 63, 64, 65, 131])
def test_warm_up_caches_all_full_blocks_and_the_next_request_hits_them(length: int, chunk: int) -> None:
    engine, _ = make_engine(prefill_chunk=chunk)
    said = Transcript()
    call = said.call(engine, WarmPrompt(**hashed(engine, prompt_of(length))))
    said.run(engine)
    assert said.outcomes[call] == Warmed(length // 8 * 8)
    assert all_blocks_unreferenced(engine)
    add_request(engine, "next", [*prompt_of(length), 5], max_tokens=20)
    said.run(engine)
    assert said.admitted["next"].num_cached_tokens == length // 8 * 8
    assert said.tokens["next"] == expected_tokens([*prompt_of(length), 5], 20)


def test_warm_up_copies_the_cached_beginning_of_a_block() -> None:
    engine, runner = make_engine(ChainRunner(block_size=16))
    said = Transcript()
    prompt = [*prompt_of(42), *prompt_of(22, seed=1)]
    for warmed in (prompt_of(64), prompt):
        said.call(engine, WarmPrompt(**hashed(engine, warmed)))
    said.run(engine)
    assert [copy.num_tokens for step in runner.steps for copy in step.copies] == [10]
    add_request(engine, "next", [*prompt, 5])
    said.run(engine)
    assert said.admitted["next"].num_cached_tokens == 64
    assert said.tokens["next"] == expected_tokens([*prompt, 5], 8)


def test_warm_up_is_counted_nowhere_and_admits_nobody() -> None:
    engine, _ = make_engine()
    before = engine.snapshot(0).counters
    said = Transcript()
    said.call(engine, WarmPrompt(**hashed(engine, prompt_of(100))))
    said.run(engine)
    after = engine.snapshot(0).counters
    assert not said.admitted
    assert not said.tokens
    assert {name for name in after if after[name] != before[name]} == {"steps"}


def test_warm_up_of_a_cached_prompt_computes_nothing() -> None:
    engine, runner = make_engine()
    add_request(engine, "user", prompt_of(64))
    said = Transcript().run(engine)
    runner.steps.clear()
    call = said.call(engine, WarmPrompt(**hashed(engine, prompt_of(64))))
    said.run(engine)
    assert said.outcomes[call] == Warmed(64)
    assert runner.steps == []


def test_warm_up_delays_a_user_by_no_more_than_one_chunk() -> None:
    engine, runner = make_engine(ChainRunner(num_blocks=64), prefill_chunk=16, max_num_batched_tokens=64)
    said = Transcript()
    call = said.call(engine, WarmPrompt(**hashed(engine, prompt_of(400))))
    said.step(engine)
    add_request(engine, "user", prompt_of(8, seed=1), max_tokens=20)
    said.step(engine)
    assert len(said.tokens["user"]) == 1, "it was not served in the first step after it came"
    said.run(engine)
    assert said.outcomes[call] == Warmed(400)
    assert max(map(warm_up_tokens, runner.steps)) == 16
    parts = [{part.request_id for part in step.requests} for step in runner.steps]
    assert sum("user" in names for names in parts) == 20
    assert all("user" in names for names in parts[1:21]), "a step of the warm-up went without the user"


def test_warm_up_keeps_to_the_bounds_of_a_step() -> None:
    engine, runner = make_engine(max_num_seqs=2, max_num_batched_tokens=16, prefill_chunk=16)
    said = Transcript()
    call = said.call(engine, WarmPrompt(**hashed(engine, prompt_of(64))))
    for i in range(6):
        add_request(engine, str(i), prompt_of(30, seed=i + 1), max_tokens=4)
    said.run(engine)
    assert said.outcomes[call] == Warmed(64)
    assert all(sum(part.num_new_tokens for part in step.requests) <= 16 for step in runner.steps)
    assert all(len(step.requests) <= 2 for step in runner.steps)


def test_warm_up_has_no_part_in_a_step_while_a_request_waits_for_memory() -> None:
    engine, runner = make_engine(ChainRunner(num_blocks=12), growth_reserve=0)
    said = Transcript()
    add_request(engine, "a", prompt_of(40), max_tokens=30)
    add_request(engine, "b", prompt_of(64, seed=1))
    said.call(engine, WarmPrompt(**hashed(engine, prompt_of(16, seed=2))))
    while "b" not in said.admitted:
        said.step(engine)
        assert "b" in said.admitted or warm_up_tokens(runner.steps[-1]) == 0
    assert len(runner.steps) > 10, "nobody waited: the test tests nothing"
    said.run(engine)
    assert sum(map(warm_up_tokens, runner.steps)) == 16


def test_warm_up_keeps_no_memory_from_a_user() -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=12), growth_reserve=0)
    said = Transcript()
    said.call(engine, WarmPrompt(**hashed(engine, prompt_of(64))))
    said.step(engine)
    said.step(engine)
    assert all_blocks_unreferenced(engine)
    add_request(engine, "large", prompt_of(88, seed=1))  # all of the pool
    said.run(engine)
    assert said.tokens["large"] == expected_tokens(prompt_of(88, seed=1), 8)
    assert engine.scheduler.counters.preemptions == 0


def test_warm_up_waits_for_a_prefix_that_a_user_computes() -> None:
    engine, runner = make_engine(max_num_batched_tokens=32, prefill_chunk=16)
    said = Transcript()
    add_request(engine, "user", [*prompt_of(64), 1])
    call = said.call(engine, WarmPrompt(**hashed(engine, prompt_of(64))))
    said.run(engine)
    assert said.outcomes[call] == Warmed(64)
    assert sum(map(warm_up_tokens, runner.steps)) == 0


def test_warm_ups_are_worked_off_in_order_one_at_a_time() -> None:
    engine, runner = make_engine()
    said = Transcript()
    calls = [said.call(engine, WarmPrompt(**hashed(engine, prompt_of(48, seed=i)))) for i in range(3)]
    said.run(engine)
    assert list(said.outcomes) == calls
    assert all(sum(part.request_id == REQUEST_ID for part in step.requests) == 1 for step in runner.steps)


def test_warm_up_longer_than_the_model_takes_is_refused() -> None:
    engine, _ = make_engine(ChainRunner(max_model_len=64))
    said = Transcript()
    call = said.call(engine, WarmPrompt(**hashed(engine, prompt_of(65))))
    said.run(engine)
    assert said.outcomes[call] == Warmed(0, WarmRefusal.TOO_LONG)


def test_warm_up_that_the_pool_cannot_hold_beside_the_pins_is_refused() -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=16))
    said = Transcript()
    said.call(engine, WarmPrompt(**hashed(engine, prompt_of(32))))
    said.run(engine)
    assert said.ask(engine, PinPrompt(handle="p", **hashed(engine, prompt_of(32)))).refusal is None
    beside = said.call(engine, WarmPrompt(**hashed(engine, prompt_of(104, seed=1))))
    same = said.call(engine, WarmPrompt(**hashed(engine, [*prompt_of(32), *prompt_of(96, seed=1)])))
    said.run(engine)
    assert said.outcomes[beside] == Warmed(0, WarmRefusal.DOES_NOT_FIT)
    assert said.outcomes[same] == Warmed(128), "its own pinned blocks count against it"


def test_warm_up_pinned_out_of_the_pool_midway_is_refused() -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=16))
    said = Transcript()
    said.call(engine, WarmPrompt(**hashed(engine, prompt_of(32))))
    said.run(engine)
    call = said.call(engine, WarmPrompt(**hashed(engine, prompt_of(128, seed=1))))
    said.step(engine)
    said.ask(engine, PinPrompt(handle="p", **hashed(engine, prompt_of(32))))
    said.run(engine)
    assert said.outcomes[call].refusal is WarmRefusal.DOES_NOT_FIT


@pytest.mark.parametrize(
    ("config", "refusal"),
    [
        ({"enable_prefix_caching": False}, WarmRefusal.DISABLED),
        ({"max_num_batched_tokens": 7, "max_num_seqs": 4}, WarmRefusal.DOES_NOT_FIT),
    ],
)
def test_warm_up_that_can_never_work_is_refused(config: dict, refusal: WarmRefusal) -> None:
    engine, _ = make_engine(**config)
    said = Transcript()
    call = said.call(engine, WarmPrompt(**hashed(engine, prompt_of(64))))
    said.run(engine)
    assert said.outcomes[call] == Warmed(0, refusal)


def test_warm_up_cancelled_midway_ends_and_leaves_what_it_has() -> None:
    engine, _ = make_engine(prefill_chunk=16)
    said = Transcript()
    first = said.call(engine, WarmPrompt(**hashed(engine, prompt_of(64))))
    second = said.call(engine, WarmPrompt(**hashed(engine, prompt_of(64, seed=1))))
    said.step(engine)
    engine.cancel_call(first)
    engine.cancel_call(99)
    said.run(engine)
    assert said.outcomes[first] == Warmed(16, WarmRefusal.ABORTED)
    assert said.outcomes[second] == Warmed(64)


def test_warm_up_whose_step_fails_is_told_and_publishes_nothing() -> None:
    engine, runner = make_engine()
    said = Transcript()
    call = said.call(engine, WarmPrompt(**hashed(engine, prompt_of(64))))
    runner.fail_next = MemoryError("no")
    said.run(engine)
    assert said.outcomes[call] == Warmed(0, WarmRefusal.FAILED)
    assert not said.failed
    assert all_blocks_unreferenced(engine)


def test_warm_up_that_traffic_evicts_at_once_is_given_up() -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=8), prefill_chunk=8, growth_reserve=0)
    said = Transcript()
    call = said.call(engine, WarmPrompt(**hashed(engine, prompt_of(56))))
    for i in range(100):
        if call in said.outcomes:
            break
        said.step(engine)
        add_request(engine, str(i), prompt_of(62, seed=i + 1), max_tokens=2)
        while engine.scheduler.num_running + engine.scheduler.num_waiting:
            said.step(engine)
    assert said.outcomes[call].refusal is WarmRefusal.EVICTED


def test_warm_up_of_a_malformed_prompt_is_answered_and_harms_nobody() -> None:
    engine, _ = make_engine()
    said = Transcript()
    fields = hashed(engine, prompt_of(64))
    for wrong in ({"token_ids": b""}, {"token_ids": b"123"}, {"scopes": []}, {"token_ids": b"\xff\xff\xff\x7f"}):
        (answer,) = engine.call(Call(0, WarmPrompt(**fields | wrong)))
        assert answer.outcome.message
    assert not engine.has_work
    call = said.call(engine, WarmPrompt(**fields | {"hash_epoch": 1}))  # hashed again
    said.run(engine)
    assert said.outcomes[call] == Warmed(64)
