"""Orders to a running engine: pins, priorities, options, and the questions about them."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.calls import (
    CacheOptions,
    Done,
    EndPriority,
    ExplainPrompt,
    ExplainRequest,
    GetBlocks,
    NotFound,
    Order,
    Pinned,
    PinPrompt,
    Prioritized,
    PrioritizePrompt,
    Refused,
    SetCacheOptions,
    Unpinned,
    UnpinPrompt,
    WarmPrompt,
)
from engine.errors import InvalidRequestError
from engine.explanations import Explanations
from engine.llm_engine import LLMEngine
from engine.messages import SamplingParams
from engine.prompt import checked_prompt
from engine.request import Request
from prefixcache.interface import Reason
from tests.engine.test_scheduler import all_blocks_unreferenced, prompt_of
from tests.support.chain_runner import ChainRunner, expected_tokens
from tests.support.engine_factory import Transcript, add_request, hashed, make_engine


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def warm(engine: LLMEngine, said: Transcript, prompt: list[int]) -> None:
    call = said.call(engine, WarmPrompt(**hashed(engine, prompt)))
    said.run(engine)
    assert said.outcomes[call].refusal is None


def traffic(engine: LLMEngine, said: Transcript, num_tokens: int) -> None:
    """Other prompts, one after another."""
    for _ in range(num_tokens // 40):
        name = f"foreign-{len(said.admitted)}"
        add_request(engine, name, prompt_of(36, seed=1000 + len(said.admitted)), max_tokens=4)
        said.run(engine)


def num_cached(engine: LLMEngine, said: Transcript, prompt: list[int]) -> int:
    return said.ask(engine, ExplainPrompt(**hashed(engine, [*prompt, 999]))).explanation.num_cached_tokens


def test_pin_survives_foreign_traffic_of_three_times_the_pool() -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=40))
    said = Transcript()
    warm(engine, said, prompt_of(64))
    warm(engine, said, prompt_of(64, seed=1))
    answer = said.ask(engine, PinPrompt(handle="support", **hashed(engine, prompt_of(64))))
    assert answer == Pinned(None, 8, 8, 10, 8, 20, 32 * 8)
    traffic(engine, said, 3 * 40 * 8)
    assert num_cached(engine, said, prompt_of(64)) == 64
    assert num_cached(engine, said, prompt_of(64, seed=1)) == 0, "no traffic: the test tests nothing"
    assert said.ask(engine, UnpinPrompt("support")) == Unpinned(40 * 8)
    traffic(engine, said, 3 * 40 * 8)
    assert num_cached(engine, said, prompt_of(64)) == 0


def test_pin_beyond_the_budget_is_refused_with_the_numbers() -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=40), max_pinned_ratio=0.1)
    said = Transcript()
    warm(engine, said, prompt_of(32))
    assert said.ask(engine, PinPrompt(handle="a", **hashed(engine, prompt_of(16)))).refusal is None
    answer = said.ask(engine, PinPrompt(handle="b", **hashed(engine, [*prompt_of(32), 1])))
    assert answer.refusal is None, "blocks that are pinned already count again"
    warm(engine, said, prompt_of(24, seed=1))
    answer = said.ask(engine, PinPrompt(handle="c", **hashed(engine, prompt_of(24, seed=1))))
    assert answer == Pinned("max_pinned_ratio", 3, 4, 4, 4, 20, 36 * 8)
    answer = said.ask(engine, PinPrompt(handle="d", **hashed(engine, prompt_of(24, seed=2))))
    assert answer == Pinned("not_cached", 0, 4, 4, 4, 20, 36 * 8)
    assert engine.cache.snapshot().pinned_blocks_max == 4


def test_pin_with_a_handle_in_use_replaces_it_and_a_refused_one_does_not() -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=40), max_pinned_ratio=0.1)
    said = Transcript()
    warm(engine, said, prompt_of(24))
    for _ in range(3):
        answer = said.ask(engine, PinPrompt(handle="p", **hashed(engine, prompt_of(24))))
        assert (answer.refusal, answer.pinned_blocks) == (None, 3)
    warm(engine, said, prompt_of(40))
    answer = said.ask(engine, PinPrompt(handle="p", **hashed(engine, prompt_of(40))))
    assert (answer.refusal, answer.pinned_blocks) == ("max_pinned_ratio", 3)
    assert said.ask(engine, UnpinPrompt("p")) == Unpinned(40 * 8)
    assert engine.cache.snapshot().pinned_blocks == 0


def test_priority_outlives_plain_traffic_and_ends_by_the_clock_or_by_order() -> None:
    clock = Clock()
    engine, _ = make_engine(ChainRunner(num_blocks=40), clock=clock)
    said = Transcript()
    kept = {"by-clock": prompt_of(64), "by-order": prompt_of(64, seed=1)}
    for handle, prompt in kept.items():
        warm(engine, said, prompt)
        order = PrioritizePrompt(handle=handle, level=2, seconds=60, **hashed(engine, prompt))
        assert said.ask(engine, order) == Prioritized(8)
    warm(engine, said, prompt_of(64, seed=2))
    traffic(engine, said, 3 * 40 * 8)
    assert [num_cached(engine, said, prompt) for prompt in kept.values()] == [64, 64]
    assert num_cached(engine, said, prompt_of(64, seed=2)) == 0
    assert said.ask(engine, EndPriority("by-order")) == Done()
    traffic(engine, said, 3 * 40 * 8)
    assert [num_cached(engine, said, prompt) for prompt in kept.values()] == [64, 0]
    clock.now += 60
    traffic(engine, said, 3 * 40 * 8)
    assert num_cached(engine, said, kept["by-clock"]) == 0
    assert isinstance(said.ask(engine, EndPriority("by-clock")), NotFound)


def test_priority_with_a_handle_in_use_replaces_it() -> None:
    clock = Clock()
    engine, _ = make_engine(ChainRunner(num_blocks=40), clock=clock)
    said = Transcript()
    warm(engine, said, prompt_of(64))
    said.ask(engine, PrioritizePrompt(handle="p", level=3, **hashed(engine, prompt_of(64))))
    said.ask(engine, PrioritizePrompt(handle="p", level=1, seconds=5, **hashed(engine, prompt_of(64))))
    clock.now += 6
    traffic(engine, said, 3 * 40 * 8)
    assert num_cached(engine, said, prompt_of(64)) == 0


@pytest.mark.parametrize(
    ("order", "param"),
    [
        (lambda fields: PrioritizePrompt(handle="p", level=0, **fields), "level"),
        (lambda fields: PrioritizePrompt(handle="p", level=1, seconds=0, **fields), "seconds"),
        (lambda fields: PrioritizePrompt(handle="p", level=1, seconds=float("nan"), **fields), "seconds"),
        (lambda fields: SetCacheOptions(max_shared_ratio=1.01), "max_shared_ratio"),
        (lambda fields: SetCacheOptions(max_shared_ratio=0.7, growth_reserve=-1), "growth_reserve"),
        (lambda fields: PinPrompt(handle="p", **fields | {"token_ids": b""}), "messages"),
    ],
)
def test_order_with_a_bad_value_is_refused_by_name_and_changes_nothing(order, param: str) -> None:
    engine, _ = make_engine()
    said = Transcript()
    answer = said.ask(engine, order(hashed(engine, prompt_of(64))))
    assert isinstance(answer, Refused)
    assert answer.param == param
    assert said.ask(engine, SetCacheOptions()) == CacheOptions(0.5, 256)


@pytest.mark.parametrize(
    "order", [UnpinPrompt("x"), EndPriority("x"), GetBlocks("x"), ExplainRequest("x")], ids=lambda o: type(o).__name__
)
def test_order_about_something_unknown_says_so(order: Order) -> None:
    engine, _ = make_engine()
    answer = Transcript().ask(engine, order)
    assert isinstance(answer, NotFound)
    assert "'x'" in answer.message


def test_sharing_cap_changes_while_serving() -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=100), max_num_seqs=4, max_num_batched_tokens=256, prefill_chunk=0)
    said = Transcript()
    warm(engine, said, prompt_of(64))
    for ratio, capped in ((0.0, 8), (0.05, 3), (1.0, 0)):
        assert said.ask(engine, SetCacheOptions(max_shared_ratio=ratio)) == CacheOptions(ratio, 256)
        for name in "ab":
            add_request(engine, f"{name}{ratio}", [*prompt_of(64), ord(name)])
        said.run(engine)
        assert said.admitted[f"b{ratio}"].reasons.get("share_cap", 0) == capped
    assert engine.cache.snapshot().shared_blocks_max == 8


def test_growth_reserve_changes_while_serving() -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=20), growth_reserve=256)
    said = Transcript()
    add_request(engine, "a", prompt_of(30), max_tokens=90)
    add_request(engine, "b", prompt_of(30, seed=1), max_tokens=90)
    said.step(engine)
    said.step(engine)
    assert "b" not in said.admitted
    assert said.ask(engine, SetCacheOptions(growth_reserve=0)) == CacheOptions(0.5, 0)
    said.step(engine)
    assert "b" in said.admitted
    said.run(engine)
    assert said.tokens["b"] == expected_tokens(prompt_of(30, seed=1), 90)


def test_waiting_request_that_a_pin_makes_too_large_is_failed_with_the_reason_and_others_go_on() -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=20), growth_reserve=0, max_num_seqs=1)
    said = Transcript()
    warm(engine, said, prompt_of(32))
    add_request(engine, "hog", prompt_of(8, seed=1), max_tokens=30)
    said.step(engine)
    add_request(engine, "stranger", prompt_of(8, seed=2), max_tokens=150)
    add_request(engine, "sharer", [*prompt_of(32), 7], max_tokens=125)
    assert said.ask(engine, PinPrompt(handle="p", **hashed(engine, prompt_of(32)))).refusal is None
    said.run(engine)
    assert set(said.failed) == {"stranger"}
    assert said.failed["stranger"].param in ("messages", "max_tokens")
    assert "158" in said.failed["stranger"].message
    assert "128" in said.failed["stranger"].message
    assert said.tokens["sharer"] == expected_tokens([*prompt_of(32), 7], 125)
    with pytest.raises(InvalidRequestError, match="the limit is 128"):
        add_request(engine, "stranger", prompt_of(8, seed=2), max_tokens=150)
    said.ask(engine, UnpinPrompt("p"))
    add_request(engine, "stranger again", prompt_of(8, seed=2), max_tokens=150)
    said.run(engine)
    assert said.tokens["stranger again"] == expected_tokens(prompt_of(8, seed=2), 150)


def test_explain_tells_where_a_prompt_differs_and_other_scopes_to_the_operator_only() -> None:
    engine, _ = make_engine()
    said = Transcript()
    warm(engine, said, prompt_of(64))
    edited = prompt_of(64)
    edited[16] = 7
    explanation = said.ask(engine, ExplainPrompt(**hashed(engine, edited))).explanation
    assert (explanation.num_cached_tokens, explanation.diverging_token) == (16, 16)
    sides = [np.frombuffer(side, np.int32) for side in (explanation.prompt_ahead, explanation.cached_ahead)]
    assert [side.tolist() for side in sides] == [edited[16:64], prompt_of(64)[16:64]]
    assert explanation.reason is Reason.DIVERGED
    other = hashed(engine, prompt_of(64), scope="tenant:b")
    assert said.ask(engine, ExplainPrompt(**other)).explanation.reason is Reason.NEVER_CACHED
    revealed = said.ask(engine, ExplainPrompt(reveal_other_scopes=True, **other)).explanation
    assert revealed.reason is Reason.OTHER_SCOPE


def test_explain_request_is_of_its_first_admission_though_its_own_blocks_are_cached_now() -> None:
    engine, _ = make_engine()
    said = Transcript()
    edited = prompt_of(64)
    edited[20] = 7
    for name, prompt, scope in (
        ("a", prompt_of(64), "tenant:a"),
        ("b", edited, "tenant:a"),
        ("c", edited, "tenant:a"),
        ("d", edited, "tenant:d"),
    ):
        add_request(engine, name, prompt, scope=scope)
        said.run(engine)
    explained = {name: said.ask(engine, ExplainRequest(name)) for name in "abcd"}
    first, second, third, other = (explained[name].explanation for name in "abcd")
    assert (first.reason, second.reason, other.reason) == (Reason.NEVER_CACHED, Reason.DIVERGED, Reason.NEVER_CACHED)
    assert (second.diverging_token, third.num_common_tokens, third.diverging_token) == (20, 64, None)
    assert [explained[name].nearest_request_id for name in "abcd"] == [None, "a", "b", None]
    assert [said.admitted[name].reason for name in "abcd"] == [explained[name].explanation.reason for name in "abcd"]
    revealed = {name: said.ask(engine, ExplainRequest(name, reveal_other_scopes=True)) for name in "abd"}
    assert [revealed[name].explanation.reason for name in "abd"] == [
        Reason.NEVER_CACHED,  # the others came later
        Reason.DIVERGED,
        Reason.OTHER_SCOPE,
    ]
    assert explained["b"] == revealed["b"]


def test_explain_request_is_forgotten_oldest_first() -> None:
    kept = Explanations(max_requests=2, max_tokens=100)
    engine, _ = make_engine()
    explanation = engine.cache.explain(checked_prompt(ExplainPrompt(**hashed(engine, [1])), vocab_size=9))
    for number, (name, num_tokens) in enumerate([("a", 30), ("b", 30), ("a", 30), ("c", 60), ("d", 50)], 1):
        prompt = checked_prompt(ExplainPrompt(**hashed(engine, [1] * num_tokens)), vocab_size=9)
        request = Request(name, prompt, SamplingParams(max_tokens=1), seed=0)
        request.arrival = number
        kept.keep(request, explanation)
        known = {name for name in "abcd" if kept.of(name)}
        assert known == [{"a"}, {"a", "b"}, {"a", "b"}, {"a", "c"}, {"d"}][number - 1]
    assert [kept.request_id(number) for number in (0, 4, 5)] == [None, None, "d"]


PROMPTS = st.builds(lambda a, b, seed: prompt_of(a) + prompt_of(b, seed), *map(st.integers, (0, 1, 1), (40, 12, 3)))


def any_order(fields: dict) -> st.SearchStrategy[Order]:
    handles = st.sampled_from("pq")
    return st.one_of(
        st.just(WarmPrompt(**fields)),
        st.builds(lambda handle: PinPrompt(handle=handle, **fields), handles),
        st.builds(UnpinPrompt, handles),
        st.builds(lambda handle: PrioritizePrompt(handle=handle, level=2, seconds=3, **fields), handles),
        st.builds(EndPriority, handles),
    )


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_random_orders_among_random_load_leave_every_answer_whole_and_every_bound_kept(data: st.DataObject) -> None:
    clock = Clock()
    num_blocks = data.draw(st.integers(8, 32), label="num_blocks")
    cap = data.draw(st.sampled_from([0.25, 0.5]), label="cap")
    engine, _ = make_engine(
        ChainRunner(num_blocks=num_blocks),
        clock=clock,
        growth_reserve=data.draw(st.sampled_from([0, 8, 64]), label="reserve"),
        max_shared_ratio=cap,
        max_num_seqs=data.draw(st.integers(1, 4), label="seqs"),
        max_num_batched_tokens=data.draw(st.integers(8, 40), label="budget"),
        prefill_chunk=data.draw(st.sampled_from([0, 1, 5, 16]), label="chunk"),
    )
    said = Transcript()
    wanted: dict[str, list[int]] = {}
    for i in range(data.draw(st.integers(1, 20), label="events")):
        prompt = data.draw(PROMPTS)
        if data.draw(st.booleans()):
            max_tokens = data.draw(st.integers(1, 30))
            with contextlib.suppress(InvalidRequestError):
                add_request(engine, str(i), prompt, max_tokens=max_tokens)
                wanted[str(i)] = expected_tokens(prompt, max_tokens)
        else:
            call = said.call(engine, data.draw(any_order(hashed(engine, prompt))))
            if data.draw(st.integers(0, 3)) == 0:
                engine.cancel_call(call)
        clock.now += data.draw(st.sampled_from([0, 2]))
        for _ in range(data.draw(st.integers(0, 5))):
            said.step(engine)
    said.run(engine)
    for name, tokens in wanted.items():
        got = said.tokens.get(name, [])
        assert got == tokens[: len(got)]
        assert got == tokens or "pinned" in said.failed[name].message
    assert engine.scheduler.counters.prompt_tokens == sum(a.num_prompt_tokens for a in said.admitted.values())
    snapshot = engine.cache.snapshot()
    assert snapshot.shared_blocks_max <= int(cap * num_blocks)
    assert snapshot.pinned_blocks_max <= int(0.25 * num_blocks)
    assert len(said.outcomes) == next(said._call_ids), "a call has no reply"
    assert all_blocks_unreferenced(engine)
