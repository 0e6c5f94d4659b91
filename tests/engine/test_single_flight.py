"""Who waits for a prefix that another request computes, and when it is asked again."""

from __future__ import annotations

import numpy as np
import pytest

from prefixcache.interface import Prompt
from tests.engine.test_scheduler import all_blocks_unreferenced, prompt_of
from tests.support.chain_runner import ChainRunner, expected_tokens
from tests.support.engine_factory import Transcript, add_request, make_engine

SHARED = prompt_of(200)


def num_computed(runner: ChainRunner) -> int:
    return sum(part.num_new_tokens for step in runner.steps for part in step.requests if part.num_new_tokens > 1)


def count_matches(engine) -> list[int]:
    counts = [0]
    match = engine.cache.match

    def counted(prompt):
        counts[0] += 1
        return match(prompt)

    engine.cache.match = counted
    return counts


def test_single_flight_waiters_are_asked_once_when_the_prefix_is_there() -> None:
    engine, runner = make_engine(ChainRunner(num_blocks=200), max_num_batched_tokens=24)
    counts = count_matches(engine)
    for i in range(6):
        add_request(engine, str(i), [*SHARED, i + 1], max_tokens=4)
    said = Transcript().run(engine)
    assert counts[0] <= 1 + 5 * 2
    assert num_computed(runner) <= 201 + 5 * 8 + 8
    for i in range(6):
        assert said.tokens[str(i)] == expected_tokens([*SHARED, i + 1], 4)


def test_single_flight_waiter_goes_on_as_soon_as_the_prefix_is_there() -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=200), max_num_batched_tokens=24)
    add_request(engine, "owner", [*SHARED, 1], max_tokens=50)
    add_request(engine, "waiter", [*SHARED, 2], max_tokens=4)
    said = Transcript()
    while "waiter" not in said.tokens:
        said.step(engine)
    assert len(said.tokens["owner"]) <= 2


def test_single_flight_who_found_no_memory_is_asked_again_when_blocks_came_back() -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=12), growth_reserve=8)
    add_request(engine, "first", prompt_of(60), max_tokens=30)
    said = Transcript()
    said.step(engine)
    counts = count_matches(engine)
    for i in range(5):
        add_request(engine, str(i), prompt_of(30, seed=i + 1), max_tokens=4)
    while "first" not in said.finish:
        said.step(engine)
    assert counts[0] == 1
    said.run(engine)
    assert len(said.finish) == 6


@pytest.mark.parametrize("how", ["abort", "preempt"])
def test_single_flight_the_first_waiter_becomes_the_owner(how: str) -> None:
    engine, runner = make_engine(ChainRunner(num_blocks=200), max_num_batched_tokens=24)
    for i in range(4):
        add_request(engine, str(i), [*SHARED, i + 1], max_tokens=4)
    said = Transcript()
    for _ in range(5):
        said.step(engine)
    assert list(said.admitted) == ["0"]
    if how == "abort":
        engine.abort("0")
    else:
        engine.scheduler._preempt(engine.scheduler._running[0], runner.steps[-1])
    said.run(engine)
    for i in range(1 if how == "abort" else 0, 4):
        assert said.tokens[str(i)] == expected_tokens([*SHARED, i + 1], 4)
    assert num_computed(runner) <= 201 + 8 + 5 * 16, "the prefix was computed more than once"
    assert all_blocks_unreferenced(engine)


def test_single_flight_abort_of_a_waiter_leaves_the_others() -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=200), max_num_batched_tokens=24)
    for i in range(4):
        add_request(engine, str(i), [*SHARED, i + 1], max_tokens=4)
    said = Transcript()
    said.step(engine)
    engine.abort("2")
    said.run(engine)
    assert sorted(said.finish) == ["0", "1", "3"]
    assert all_blocks_unreferenced(engine)


def test_single_flight_owner_inherits_the_place_of_a_short_waiter() -> None:
    engine, _ = make_engine(
        ChainRunner(num_blocks=400), max_num_batched_tokens=32, prefill_chunk=0, long_prefill_token_threshold=64
    )
    said = Transcript()
    add_request(engine, "owner", [*SHARED, 1])
    said.step(engine)
    for i in range(2):
        add_request(engine, f"long{i}", prompt_of(600, seed=i + 1))
    said.step(engine)
    add_request(engine, "waiter", [*SHARED, 2])
    assert engine.scheduler._waiting.lane_of_running(engine.scheduler._running[0]).name == "SHORT"
    said.run(engine)
    assert list(said.tokens)[:2] == ["owner", "waiter"]
    assert said.admitted["waiter"].num_cached_tokens >= 192


def test_single_flight_who_waits_in_the_long_lane_follows_its_prefix() -> None:
    engine, runner = make_engine(
        ChainRunner(num_blocks=500), max_num_batched_tokens=32, prefill_chunk=0, long_prefill_token_threshold=64
    )
    said = Transcript()
    for i in range(3):
        add_request(engine, f"long{i}", prompt_of(600, seed=i + 1))
        add_request(engine, f"question{i}", [*SHARED, i + 1])
    counts = count_matches(engine)
    said.run(engine)
    order = list(said.tokens)
    assert order.index("question2") < order.index("long1"), "it stayed behind a long prompt though its prefix was there"
    assert num_computed(runner) <= 3 * 600 + 201 + 2 * 9
    assert counts[0] <= 6 * 3
    for i in range(3):
        assert said.tokens[f"question{i}"] == expected_tokens([*SHARED, i + 1], 8)
    assert all_blocks_unreferenced(engine)


def test_scheduler_refuses_with_a_reason_what_pins_left_no_room_for() -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=20), max_pinned_ratio=0.5)
    add_request(engine, "pinned", prompt_of(64), max_tokens=1)
    said = Transcript().run(engine)
    add_request(engine, "running", prompt_of(10, seed=2), max_tokens=20)
    said.step(engine)
    add_request(engine, "large", prompt_of(60, seed=1), max_tokens=80)
    scopes = engine.scheduler.find("large").prompt.scopes
    pinned = Prompt(np.array(prompt_of(64), dtype=np.int32), block_hashes=b"", scopes=scopes, hash_epoch=0)
    assert engine.cache.pin(pinned).pin is not None
    said.run(engine)
    assert "not pinned" in said.failed["large"].message
    assert said.failed["large"].param == "messages"
    assert "large" not in said.admitted
    assert said.tokens["running"] == expected_tokens(prompt_of(10, seed=2), 20)
