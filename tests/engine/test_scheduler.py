"""Scheduler and engine over a runner whose answers betray every wrong block."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvalidRequestError
from engine.messages import AbortRequest
from tests.support.chain_runner import ChainRunner, expected_tokens
from tests.support.engine_factory import Transcript, add_request, make_engine


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(1, 1000), k=length)


def all_blocks_unreferenced(engine) -> bool:
    snapshot = engine.cache.snapshot()
    return snapshot.active_blocks == 0 and snapshot.free_blocks + snapshot.cached_blocks == snapshot.total_blocks


@pytest.mark.parametrize("chunk", [0, 1, 7, 16], ids=lambda chunk: f"chunk{chunk}")
@pytest.mark.parametrize("length", [1, 7, 8, 9, 63, 64, 65, 131])
def test_engine_any_chunk_and_length_gives_the_uncached_answer(length: int, chunk: int) -> None:
    engine, _ = make_engine(prefill_chunk=chunk)
    add_request(engine, "cold", prompt_of(length), max_tokens=20)
    said = Transcript().run(engine)
    add_request(engine, "hit", prompt_of(length), max_tokens=20)
    said.run(engine)
    assert said.tokens["cold"] == said.tokens["hit"] == expected_tokens(prompt_of(length), 20)
    assert said.admitted["cold"].num_cached_tokens == 0
    assert said.admitted["hit"].num_cached_tokens >= (length - 1) // 8 * 8
    assert all_blocks_unreferenced(engine)


def test_engine_second_request_reuses_the_shared_prefix_only() -> None:
    engine, runner = make_engine()
    shared = prompt_of(40)
    add_request(engine, "a", [*shared, 1, 2, 3])
    said = Transcript().run(engine)
    runner.steps.clear()
    add_request(engine, "b", [*shared, 9, 9, 9])
    said.run(engine)
    assert said.admitted["b"].num_cached_tokens == 40
    assert sum(r.num_new_tokens for step in runner.steps for r in step.requests) == 3 + 7  # no token twice
    assert said.tokens["b"] == expected_tokens([*shared, 9, 9, 9], 8)


def test_engine_generated_tokens_are_reused_by_the_next_turn() -> None:
    engine, _ = make_engine()
    first = prompt_of(30)
    add_request(engine, "turn1", first, max_tokens=20)
    said = Transcript().run(engine)
    second = first + said.tokens["turn1"] + prompt_of(5, seed=1)
    add_request(engine, "turn2", second)
    said.run(engine)
    assert said.admitted["turn2"].num_cached_tokens >= (30 + 19) // 8 * 8
    assert said.tokens["turn2"] == expected_tokens(second, 8)


def test_scheduler_waits_for_a_prefix_that_another_request_computes() -> None:
    engine, runner = make_engine(max_num_batched_tokens=16, max_num_seqs=4)
    shared = prompt_of(64)
    for name in "abc":
        add_request(engine, name, [*shared, ord(name)])
    said = Transcript().run(engine)
    computed = sum(r.num_new_tokens for step in runner.steps for r in step.requests)
    assert computed <= 65 + 2 * 8 + 3 * 8, "the shared prefix was computed more than once"
    for name in "abc":
        assert said.tokens[name] == expected_tokens([*shared, ord(name)], 8)


def test_scheduler_abort_of_the_prefix_owner_hands_the_work_over() -> None:
    engine, _ = make_engine(max_num_batched_tokens=16, max_num_seqs=4)
    shared = prompt_of(64)
    add_request(engine, "owner", [*shared, 1])
    add_request(engine, "waiter", [*shared, 2])
    said = Transcript()
    said.step(engine)
    assert "waiter" not in said.admitted
    engine.abort("owner")
    said.run(engine)
    assert said.tokens["waiter"] == expected_tokens([*shared, 2], 8)
    assert "owner" not in said.finish
    assert all_blocks_unreferenced(engine)


def test_scheduler_decoding_requests_go_on_while_a_long_prompt_prefills() -> None:
    engine, runner = make_engine(max_num_batched_tokens=24, prefill_chunk=16)
    add_request(engine, "short", prompt_of(4), max_tokens=30)
    said = Transcript()
    said.step(engine)
    add_request(engine, "long", prompt_of(200, seed=2))
    runner.steps.clear()
    for _ in range(10):
        said.step(engine)
    assert all("short" in {r.request_id for r in step.requests} for step in runner.steps)


def test_scheduler_first_come_first_served_when_memory_is_short() -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=10), growth_reserve=8)
    add_request(engine, "first", prompt_of(40), max_tokens=8)
    add_request(engine, "large", prompt_of(56, seed=1), max_tokens=8)
    add_request(engine, "small", prompt_of(8, seed=2), max_tokens=2)
    said = Transcript()
    said.step(engine)
    assert list(said.admitted) == ["first"]  # "small" would fit, but may not overtake
    said.run(engine)
    assert list(said.admitted) == ["first", "large", "small"]
    assert said.tokens["large"] == expected_tokens(prompt_of(56, seed=1), 8)


def test_scheduler_tells_the_runner_once_who_lost_its_blocks() -> None:
    engine, _ = make_engine()
    for seed, request_id in enumerate(("kept", "gone")):
        add_request(engine, request_id, prompt_of(8, seed=seed))
    scheduler = engine.scheduler
    first = scheduler.schedule()
    assert [part.request_id for part in first.requests] == ["kept", "gone"]
    assert first.ended == []
    engine.abort("gone")
    assert scheduler.schedule().ended == ["gone"]
    assert scheduler.schedule().ended == []


def test_scheduler_preempts_past_the_reserve_and_every_answer_is_whole() -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=12), growth_reserve=8)
    for i in range(4):
        add_request(engine, str(i), prompt_of(10, seed=i), max_tokens=50)
    said = Transcript().run(engine)
    assert engine.scheduler.counters.preemptions > 0, "the pool was not short: the test tests nothing"
    for i in range(4):
        assert said.tokens[str(i)] == expected_tokens(prompt_of(10, seed=i), 50)
    assert engine.scheduler.counters.prompt_tokens == 40  # counted once, preemption or not


@pytest.mark.parametrize("reserve", [256, 0], ids=["reserve", "no-reserve"])
@pytest.mark.parametrize("cap", [0.25, 0.5, 0.75, 1.0])
def test_engine_32_sharers_of_most_of_the_pool_all_finish_whole(cap: float, reserve: int) -> None:
    engine, _ = make_engine(
        ChainRunner(num_blocks=96),
        max_num_seqs=32,
        max_num_batched_tokens=128,
        max_shared_ratio=cap,
        growth_reserve=reserve,
    )
    shared = prompt_of(59 * 8)
    for i in range(32):
        add_request(engine, str(i), [*shared, i + 1], max_tokens=48)
    said = Transcript().run(engine)
    for i in range(32):
        assert said.tokens[str(i)] == expected_tokens([*shared, i + 1], 48)
    assert engine.cache.snapshot().shared_blocks_max <= cap * 96
    if reserve:
        assert engine.scheduler.counters.preemptions == 0
    assert all_blocks_unreferenced(engine)


def test_engine_end_of_sequence_token_ends_the_answer_unless_ignored() -> None:
    answer = expected_tokens(prompt_of(9), 20)
    runner = ChainRunner(eos_token_ids=frozenset({answer[4]}))
    engine, _ = make_engine(runner)
    add_request(engine, "a", prompt_of(9), max_tokens=20)
    add_request(engine, "b", prompt_of(9), max_tokens=20, ignore_eos=True)
    said = Transcript().run(engine)
    assert (said.tokens["a"], said.finish["a"]) == (answer[:5], "stop")
    assert (said.tokens["b"], said.finish["b"]) == (answer, "length")


@pytest.mark.parametrize(
    ("length", "max_tokens", "param"),
    [(0, 1, "messages"), (8, 0, "max_tokens"), (500, 100, "max_tokens"), (600, 1, "messages")],
)
def test_engine_impossible_request_is_refused_with_the_field(length: int, max_tokens: int, param: str) -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=70))
    with pytest.raises(InvalidRequestError) as error:
        add_request(engine, "x", prompt_of(length), max_tokens=max_tokens)
    assert error.value.param == param
    assert not engine.has_work


def test_engine_failed_step_fails_its_requests_and_the_engine_goes_on() -> None:
    engine, runner = make_engine()
    add_request(engine, "bad", prompt_of(20))
    runner.fail_next = MemoryError("no")
    said = Transcript()
    said.step(engine)
    assert said.failed["bad"].param is None
    add_request(engine, "good", prompt_of(20))
    said.run(engine)
    assert said.admitted["good"].num_cached_tokens == 0, "KV of a failed step was published"
    assert said.tokens["good"] == expected_tokens(prompt_of(20), 8)


def test_engine_gives_up_after_several_failed_steps_in_a_row() -> None:
    engine, runner = make_engine()
    said = Transcript()
    for i in range(2):
        add_request(engine, str(i), prompt_of(20))
        runner.fail_next = OSError("no")
        said.step(engine)
    add_request(engine, "last", prompt_of(20))
    runner.fail_next = OSError("no")
    with pytest.raises(RuntimeError, match="3 engine steps failed in a row"):
        said.step(engine)


def test_engine_other_scope_shares_nothing() -> None:
    engine, _ = make_engine()
    add_request(engine, "a", prompt_of(40), scope="tenant:a")
    said = Transcript().run(engine)
    add_request(engine, "b", prompt_of(40), scope="tenant:b")
    said.run(engine)
    assert said.admitted["b"].num_cached_tokens == 0


def test_abort_message_of_an_unknown_request_is_ignored() -> None:
    engine, _ = make_engine()
    engine.abort(AbortRequest("nobody").request_id)
    assert not engine.has_work


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_engine_random_load_every_answer_is_whole_and_nothing_leaks(data: st.DataObject) -> None:
    num_blocks = data.draw(st.integers(6, 24), label="num_blocks")
    engine, _ = make_engine(
        ChainRunner(num_blocks=num_blocks),
        growth_reserve=data.draw(st.sampled_from([0, 8, 64]), label="reserve"),
        max_shared_ratio=data.draw(st.sampled_from([0.25, 0.5, 1.0]), label="cap"),
        max_num_seqs=data.draw(st.integers(1, 6), label="seqs"),
        max_num_batched_tokens=data.draw(st.integers(6, 40), label="budget"),
        prefill_chunk=data.draw(st.sampled_from([0, 1, 5, 16]), label="chunk"),
    )
    said = Transcript()
    wanted: dict[str, list[int]] = {}
    aborted: set[str] = set()
    max_n = engine._config.scheduler.max_num_seqs
    for i in range(data.draw(st.integers(1, 12), label="requests")):
        shared = prompt_of(data.draw(st.integers(0, 40)), seed=0)
        prompt = shared + prompt_of(data.draw(st.integers(1, 12)), seed=data.draw(st.integers(1, 3)))
        max_tokens = data.draw(st.integers(1, 30))
        try:
            n = data.draw(st.integers(1, min(3, max_n)), label="n")
            add_request(engine, str(i), prompt, max_tokens=max_tokens, n=n, seed=i + 1)
        except InvalidRequestError:
            continue
        for index in range(n):
            key = f"{i}/{index}" if index else str(i)
            wanted[key] = expected_tokens(prompt, max_tokens, seed=i + 1, index=index)
        for _ in range(data.draw(st.integers(0, 6))):
            said.step(engine)
        if data.draw(st.integers(0, 5)) == 0:
            victim = data.draw(st.sampled_from(sorted(wanted))).partition("/")[0]
            engine.abort(victim)
            aborted.add(victim)
    said.run(engine)
    for name, tokens in wanted.items():
        got = said.tokens.get(name, [])
        assert got == tokens[: len(got)]
        if name.partition("/")[0] not in aborted:
            assert got == tokens
    assert not said.failed
    assert all_blocks_unreferenced(engine)
