"""`n` answers from one prefill."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import StepOutput
from engine.errors import InvalidRequestError
from engine.request import seed_of_answer
from tests.engine.test_scheduler import all_blocks_unreferenced, prompt_of
from tests.support.chain_runner import ChainRunner, expected_tokens
from tests.support.engine_factory import Transcript, add_request, make_engine

SEED = 11


def keys(request_id: str, n: int) -> list[str]:
    return [request_id, *(f"{request_id}/{index}" for index in range(1, n))]


def assert_whole(said: Transcript, request_id: str, prompt: list[int], n: int, max_tokens: int) -> None:
    for index, key in enumerate(keys(request_id, n)):
        assert said.tokens[key] == expected_tokens(prompt, max_tokens, seed=SEED, index=index)


@pytest.mark.parametrize("cap", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("length", [1, 2, 8, 9, 40, 41])
def test_forks_n_answers_from_one_prefill(length: int, cap: float) -> None:
    engine, runner = make_engine(max_shared_ratio=cap, max_pinned_ratio=0.0)
    add_request(engine, "a", prompt_of(length), max_tokens=20, n=4, seed=SEED)
    said = Transcript().run(engine)
    assert_whole(said, "a", prompt_of(length), 4, 20)
    assert len({tuple(said.tokens[key]) for key in keys("a", 4)}) == 4, "the answers do not go apart: a weak test"
    computed = sum(part.num_new_tokens for step in runner.steps for part in step.requests)
    assert computed == length - 1 + 4 + 4 * 19, "the prompt was computed more than once, but for its last token"
    assert list(said.admitted) == ["a"]
    assert engine.scheduler.counters.prompt_tokens == length
    assert all_blocks_unreferenced(engine)


def test_forks_share_the_prompt_and_copy_on_the_first_write() -> None:
    engine, runner = make_engine()
    add_request(engine, "a", prompt_of(21), max_tokens=4, n=3, seed=SEED)
    said = Transcript()
    for _ in range(3):  # two chunks, then the step of the forks
        said.step(engine)
    tables = [part.block_ids for part in runner.steps[-1].requests]
    assert len(tables) == 3
    assert tables[0][:2] == tables[1][:2] == tables[2][:2]
    assert len({table[2] for table in tables}) == 3
    assert [copy.num_tokens for copy in runner.steps[-1].copies] == [4, 4]  # the third writes in place


def test_forks_fall_back_to_waiting_where_the_cap_wants_copies_that_do_not_fit() -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=12), max_shared_ratio=0.0, max_pinned_ratio=0.0, growth_reserve=0)
    add_request(engine, "a", prompt_of(50), max_tokens=8, n=2, seed=SEED)
    said = Transcript()
    while engine.scheduler.counters.generated_tokens == 0:
        said.step(engine)
    assert (engine.scheduler.num_running, engine.scheduler.num_waiting) == (1, 1), "the fork had room: a weak test"
    said.run(engine)
    assert_whole(said, "a", prompt_of(50), 2, 8)
    assert all_blocks_unreferenced(engine)


def test_forks_preempted_every_answer_is_whole() -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=14), growth_reserve=8)
    for name in "ab":
        add_request(engine, name, prompt_of(10, seed=ord(name)), max_tokens=60, n=3, seed=SEED)
    said = Transcript().run(engine)
    assert engine.scheduler.counters.preemptions > 0, "the pool was not short: the test tests nothing"
    for name in "ab":
        assert_whole(said, name, prompt_of(10, seed=ord(name)), 3, 60)
    assert engine.scheduler.counters.prompt_tokens == 20
    assert all_blocks_unreferenced(engine)


@pytest.mark.parametrize("num_steps", [0, 1, 2, 3, 6])
def test_forks_abort_ends_all_answers(num_steps: int) -> None:
    engine, _ = make_engine()
    add_request(engine, "a", prompt_of(30), max_tokens=20, n=4, seed=SEED)
    said = Transcript()
    for _ in range(num_steps):
        said.step(engine)
    engine.abort("a")
    assert not engine.has_work
    assert all_blocks_unreferenced(engine)
    assert not said.finish


def test_forks_each_answer_ends_on_its_own_and_abort_still_ends_the_rest() -> None:
    prompt = prompt_of(9)
    answers = [expected_tokens(prompt, 20, seed=SEED, index=index) for index in range(2)]
    eos = next(token for token in answers[0][2:] if token not in answers[1])
    engine, _ = make_engine(ChainRunner(eos_token_ids=frozenset({eos})))
    add_request(engine, "a", prompt, max_tokens=20, n=2, seed=SEED)
    said = Transcript()
    while "a" not in said.finish:
        said.step(engine)
    assert said.finish == {"a": "stop"}
    assert engine.scheduler.num_running == 1
    engine.abort("a")
    assert not engine.has_work


@pytest.mark.parametrize("index", [0, 1, 2])
def test_forks_one_answer_ends_alone_once_it_has_begun(index: int) -> None:
    engine, _ = make_engine()
    prompt = prompt_of(30)
    add_request(engine, "a", prompt, max_tokens=20, n=3, seed=SEED)
    said = Transcript()
    for _ in range(8):
        engine.abort("a", index)  # too early: it computes the prompt, or is still to fork
        said.step(engine)
        if said.tokens:
            break
    begun = keys("a", 3)[index]
    engine.abort("a", index)
    said.run(engine)
    assert len(said.tokens[begun]) == 1
    assert set(said.finish) == set(keys("a", 3)) - {begun}
    for number, key in enumerate(keys("a", 3)):
        assert said.tokens[key] == expected_tokens(prompt, 1 if key == begun else 20, seed=SEED, index=number)
    assert all_blocks_unreferenced(engine)


def test_forks_one_bad_answer_fails_the_request_once() -> None:
    engine, runner = make_engine()
    add_request(engine, "a", prompt_of(9), max_tokens=20, n=3, seed=SEED)
    add_request(engine, "other", prompt_of(9, seed=1), max_tokens=20)
    execute = runner.execute

    def fail(output):
        result = execute(output)
        return StepOutput(result.token_ids, {"a/1": "bad"} if "a/1" in result.token_ids else {})

    runner.execute = fail
    said = Transcript().run(engine)
    assert list(said.failed) == ["a"]
    assert said.tokens["other"] == expected_tokens(prompt_of(9, seed=1), 20)
    assert all_blocks_unreferenced(engine)


@pytest.mark.parametrize("n", [0, -1, 9])
def test_forks_impossible_n_is_refused_with_the_field(n: int) -> None:
    engine, _ = make_engine(max_num_seqs=8)
    with pytest.raises(InvalidRequestError, match="wanted 1 to 8") as error:
        add_request(engine, "a", prompt_of(9), n=n)
    assert error.value.param == "n"


def test_forks_key_of_an_answer_that_is_in_use_is_refused() -> None:
    engine, _ = make_engine()
    add_request(engine, "a/1", prompt_of(9))
    with pytest.raises(ValueError, match="in use"):
        add_request(engine, "a", prompt_of(9), n=2)


@given(seeds=st.lists(st.integers(-(2**63), 2**64 - 1), min_size=2, max_size=2, unique=True))
@settings(max_examples=50, deadline=None)
def test_seed_of_answer_differs_by_seed_and_index(seeds: list[int]) -> None:
    assert seed_of_answer(seeds[0], 0) == seeds[0]
    drawn = [seed_of_answer(seed % 2**64, index) for seed, index in itertools.product(seeds, range(1, 5))]
    expected = 8 if seeds[0] % 2**64 != seeds[1] % 2**64 else 4
    assert len(set(drawn)) == expected
