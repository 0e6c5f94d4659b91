"""Short prompts beside long ones."""

from __future__ import annotations

import itertools

import pytest

from engine.request import Lane
from engine.waiting import MAX_BYPASSES
from tests.engine.test_scheduler import all_blocks_unreferenced, prompt_of
from tests.support.chain_runner import ChainRunner, expected_tokens
from tests.support.engine_factory import Transcript, add_request, make_engine

LONG, SHORT = 400, 10


def lanes(runner: ChainRunner | None = None, **config: object):
    return make_engine(runner or ChainRunner(num_blocks=400), long_prefill_token_threshold=64, **config)


@pytest.mark.parametrize("num_long", [1, 3, 8])
def test_lanes_short_prompt_has_its_first_token_after_one_step(num_long: int) -> None:
    engine, _ = lanes(max_num_seqs=16, max_num_batched_tokens=48, prefill_chunk=0)
    for i in range(num_long):
        add_request(engine, f"long{i}", prompt_of(LONG, seed=i))
    said = Transcript()
    said.step(engine)
    said.step(engine)
    add_request(engine, "short", prompt_of(SHORT, seed=99))
    said.step(engine)
    assert len(said.tokens["short"]) == 1
    assert "long0" not in said.tokens, "the long prompt is done: a weak test"


@pytest.mark.parametrize("budget", [2, 3, 24])
def test_lanes_long_prompt_does_not_starve_under_an_endless_stream_of_short_ones(budget: int) -> None:
    engine, _ = lanes(max_num_seqs=min(8, budget), max_num_batched_tokens=budget, prefill_chunk=0)
    add_request(engine, "long", prompt_of(LONG))
    said = Transcript()
    numbers = itertools.count()
    for _ in range(8 * LONG):
        while engine.scheduler.num_waiting < 3:
            number = next(numbers)
            add_request(engine, f"short{number}", prompt_of(SHORT, seed=number), max_tokens=1)
        said.step(engine)
        if "long" in said.tokens:
            return
    raise AssertionError("the long prompt starved")


def test_lanes_kept_share_of_the_long_lane_goes_to_the_short_one_when_nothing_long_is_there() -> None:
    engine, runner = lanes(max_num_batched_tokens=40, prefill_chunk=0)
    for i in range(4):
        add_request(engine, str(i), prompt_of(SHORT, seed=i))
    Transcript().step(engine)
    assert len(runner.steps[0].requests) == 4


def test_lanes_a_long_prompt_that_is_cached_is_a_short_one() -> None:
    engine, _ = lanes(max_num_batched_tokens=48)
    add_request(engine, "first", prompt_of(LONG))
    said = Transcript().run(engine)
    for i in range(3):
        add_request(engine, f"long{i}", prompt_of(LONG, seed=i + 1))
    said.step(engine)
    add_request(engine, "again", [*prompt_of(LONG), 5])
    said.step(engine)
    assert "again" in said.tokens


def test_lanes_what_is_evicted_while_it_waits_goes_to_the_long_lane() -> None:
    engine, _ = lanes(ChainRunner(num_blocks=60), max_num_batched_tokens=32, growth_reserve=0, max_num_seqs=2)
    add_request(engine, "first", prompt_of(LONG))
    said = Transcript().run(engine)
    for i in range(2):
        add_request(engine, f"other{i}", prompt_of(SHORT, seed=i + 7), max_tokens=200)
    said.step(engine)
    add_request(engine, "again", [*prompt_of(LONG), 5])
    request = engine.scheduler.find("again")
    assert request.lane is Lane.SHORT
    said.run(engine)
    assert said.admitted["again"].num_cached_tokens < LONG - 64, "its prefix was not evicted: a weak test"
    assert request.lane is Lane.LONG
    assert said.tokens["again"] == expected_tokens([*prompt_of(LONG), 5], 8)


def test_lanes_room_is_kept_for_short_prompts_while_long_ones_fill_the_pool() -> None:
    engine, _ = lanes(ChainRunner(num_blocks=88), max_num_seqs=8, growth_reserve=16)
    for i in range(3):
        add_request(engine, f"long{i}", prompt_of(300, seed=i), max_tokens=16)
    said = Transcript()
    for _ in range(4):
        said.step(engine)
    assert engine.scheduler.num_waiting >= 1, "the pool is not full: a weak test"
    add_request(engine, "short", prompt_of(40, seed=9), max_tokens=24)
    said.step(engine)
    assert "short" in said.admitted


def test_lanes_everybody_is_counted_where_the_prompt_is_or_was_computed() -> None:
    engine, _ = lanes(max_num_batched_tokens=48, prefill_chunk=0, max_num_seqs=4)
    said = Transcript()

    def counts() -> tuple[list[int], ...]:
        snapshot, scheduler = engine.snapshot(0), engine.scheduler
        by_state = (snapshot.running, snapshot.waiting)
        assert [sum(by_lane.values()) for by_lane in by_state] == [scheduler.num_running, scheduler.num_waiting]
        return tuple([by_lane["short"], by_lane["long"]] for by_lane in by_state)

    add_request(engine, "long", prompt_of(LONG), max_tokens=200)
    add_request(engine, "other", prompt_of(LONG, seed=1), max_tokens=1)
    assert counts() == ([0, 0], [0, 2])
    said.step(engine)
    add_request(engine, "follower", [*prompt_of(LONG), 5], max_tokens=200)
    assert "follower" not in said.admitted
    assert counts() == ([0, 1], [1, 1]), "who waits for another's prefix has little left to compute"
    while "follower" not in said.tokens:
        said.step(engine)
    assert len(said.tokens["long"]) > 1, "it does not decode: a weak test"
    while "other" not in said.finish:
        said.step(engine)
    add_request(engine, "answers", prompt_of(SHORT), max_tokens=200, n=2)
    while "answers/1" not in said.tokens:
        said.step(engine)
    assert counts() == ([3, 1], [0, 0]), "answers with blocks, by their prompt"


def test_lanes_nobody_overtakes_for_ever_who_waits_for_memory() -> None:
    engine, _ = lanes(ChainRunner(num_blocks=60), max_num_seqs=8, growth_reserve=16, max_num_batched_tokens=64)
    said = Transcript()
    for i in range(4):
        add_request(engine, f"early{i}", prompt_of(SHORT, seed=i), max_tokens=12)
    said.step(engine)
    add_request(engine, "long", prompt_of(440), max_tokens=8)  # fits alone only
    for number in range(4 * MAX_BYPASSES):
        add_request(engine, f"short{number}", prompt_of(SHORT, seed=100 + number), max_tokens=12)
    said.run(engine)
    order = list(said.admitted)
    assert 4 < order.index("long") <= 4 + MAX_BYPASSES + 4  # the last: admitted before it was asked
    assert said.tokens["long"] == expected_tokens(prompt_of(440), 8)
    assert all_blocks_unreferenced(engine)


def test_lanes_off_is_first_come_first_served() -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=400), long_prefill_token_threshold=0, max_num_batched_tokens=48)
    add_request(engine, "long", prompt_of(LONG))
    add_request(engine, "short", prompt_of(SHORT, seed=1), max_tokens=2)
    said = Transcript().run(engine)
    assert list(said.admitted) == ["long", "short"]
