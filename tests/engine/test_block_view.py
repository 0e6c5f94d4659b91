"""The block table of a request, as the operator sees it: while it runs, and afterwards."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.block_history import BlockHistory
from engine.calls import GetBlocks, NotFound, PinPrompt, RequestBlocks
from engine.errors import InvalidRequestError
from engine.llm_engine import LLMEngine
from tests.engine.test_control import warm
from tests.engine.test_scheduler import prompt_of
from tests.support.chain_runner import ChainRunner
from tests.support.engine_factory import Transcript, add_request, hashed, make_engine


def blocks_of(engine: LLMEngine, said: Transcript, request_id: str) -> RequestBlocks:
    return said.ask(engine, GetBlocks(request_id))


def test_two_requests_with_a_common_prefix_show_the_same_blocks_with_two_references() -> None:
    engine, _ = make_engine()
    said = Transcript()
    warm(engine, said, prompt_of(24))
    for name in "ab":
        add_request(engine, name, [*prompt_of(24), ord(name)])
    said.step(engine)
    a, b = (blocks_of(engine, said, name) for name in "ab")
    assert [block.block_id for block in a.blocks[:3]] == [block.block_id for block in b.blocks[:3]]
    assert a.blocks[3].block_id != b.blocks[3].block_id
    for view in (a, b):
        assert view.status == "running"
        assert view.reasons == {"hit": 3, "diverged": 1} or view.reasons == {"hit": 3, "never_cached": 1}
        shape = [(block.state, block.ref_count, block.shared, block.num_tokens) for block in view.blocks]
        assert shape == [("ready", 2, True, 8)] * 3 + [("private", 1, False, 1)]


def test_blocks_that_are_being_computed_are_pending_and_pinned_ones_say_so() -> None:
    engine, _ = make_engine(prefill_chunk=16)
    said = Transcript()
    warm(engine, said, prompt_of(16))
    said.ask(engine, PinPrompt(handle="p", **hashed(engine, prompt_of(16))))
    add_request(engine, "a", prompt_of(50))
    said.step(engine)
    view = blocks_of(engine, said, "a")
    assert [block.state for block in view.blocks] == ["ready"] * 4 + ["pending"] * 2 + ["private"]
    assert [block.pinned for block in view.blocks] == [True] * 2 + [False] * 5
    assert [block.shared for block in view.blocks] == [True] * 2 + [False] * 5
    assert [block.num_tokens for block in view.blocks] == [8] * 4 + [0] * 3


def test_waiting_request_has_no_blocks_and_an_ended_one_those_of_its_end() -> None:
    engine, _ = make_engine(max_num_seqs=1)
    said = Transcript()
    add_request(engine, "a", prompt_of(20), max_tokens=13)
    add_request(engine, "b", prompt_of(20, seed=1))
    said.step(engine)
    assert blocks_of(engine, said, "b") == RequestBlocks("waiting", 20, 0, {}, [])
    said.run(engine)
    ended = blocks_of(engine, said, "a")
    assert (ended.status, ended.num_prompt_tokens, ended.num_cached_tokens) == ("ended", 20, 0)
    assert ended.reasons == {"never_cached": 3}
    assert sum(block.num_tokens for block in ended.blocks) == 20 + 12  # the last token's KV is never computed
    assert all(block.ref_count == 1 for block in ended.blocks)


def test_request_with_several_answers_is_seen_as_the_first_of_them() -> None:
    engine, _ = make_engine()
    said = Transcript()
    add_request(engine, "a", prompt_of(20), n=3)
    while engine.scheduler.num_running < 3:
        said.step(engine)
    assert [block.ref_count for block in blocks_of(engine, said, "a").blocks[:2]] == [3, 3]
    said.run(engine)
    assert blocks_of(engine, said, "a").reasons == {"never_cached": 3}


def test_aborted_requests_are_remembered_too() -> None:
    engine, _ = make_engine()
    said = Transcript()
    add_request(engine, "a", prompt_of(20))
    said.step(engine)
    engine.abort("a")
    assert len(blocks_of(engine, said, "a").blocks) == 3


def test_history_is_bounded_by_requests_and_by_blocks() -> None:
    engine, _ = make_engine()
    said = Transcript()
    history = engine.scheduler.history = BlockHistory(engine.cache, max_requests=3, max_blocks=7)
    for name, length in (("a", 9), ("b", 9), ("c", 1), ("d", 1), ("e", 33), ("f", 80)):
        add_request(engine, name, prompt_of(length), max_tokens=1)
        said.run(engine)
        kept = [name for name in "abcdef" if history.ended(name)]
        expected = {
            "a": ["a"],
            "b": ["a", "b"],
            "c": ["a", "b", "c"],
            "d": ["b", "c", "d"],
            "e": ["c", "d", "e"],
            "f": [],
        }
        assert kept == expected[name]
    assert isinstance(blocks_of(engine, said, "f"), NotFound)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_block_view_adds_up_at_any_moment(data: st.DataObject) -> None:
    engine, _ = make_engine(
        ChainRunner(num_blocks=data.draw(st.integers(8, 24), label="num_blocks")),
        growth_reserve=data.draw(st.sampled_from([0, 64]), label="reserve"),
        max_shared_ratio=data.draw(st.sampled_from([0.25, 1.0]), label="cap"),
        max_num_seqs=data.draw(st.integers(1, 4), label="seqs"),
        prefill_chunk=data.draw(st.sampled_from([0, 5, 16]), label="chunk"),
    )
    said = Transcript()
    names: list[str] = []
    for i in range(data.draw(st.integers(1, 8), label="requests")):
        prompt = prompt_of(data.draw(st.integers(0, 40))) + prompt_of(data.draw(st.integers(1, 12)), seed=1)
        try:
            add_request(engine, str(i), prompt, max_tokens=data.draw(st.integers(1, 30)))
        except InvalidRequestError:
            continue
        names.append(str(i))
        for _ in range(data.draw(st.integers(0, 6))):
            said.step(engine)
        running: dict[int, int] = {}
        for name in names:
            view = blocks_of(engine, said, name)
            check(view, said, name)
            if view.status == "running":
                for block in view.blocks:
                    running[block.block_id] = running.get(block.block_id, 0) + 1
        for name in names:
            view = blocks_of(engine, said, name)
            if view.status == "running":
                assert all(block.ref_count == running[block.block_id] for block in view.blocks)


def check(view: RequestBlocks, said: Transcript, name: str) -> None:
    admitted = said.admitted.get(name)
    if admitted is None:
        assert (view.status, view.reasons, view.blocks) == ("waiting", {}, [])
        return
    assert view.reasons == admitted.reasons
    assert (view.num_prompt_tokens, view.num_cached_tokens) == (admitted.num_prompt_tokens, admitted.num_cached_tokens)
    assert sum(view.reasons.values()) == -(-view.num_prompt_tokens // 8)
    # With blocks of 8 tokens nothing is copied in part.
    assert (view.reasons.get("hit", 0) + view.reasons.get("share_cap", 0)) * 8 == view.num_cached_tokens
    assert all(block.shared == (block.ref_count > 1) for block in view.blocks)
    assert all(block.num_tokens == 8 for block in view.blocks if block.state == "ready")
    if view.status != "waiting":
        assert len(view.blocks) >= -(-view.num_prompt_tokens // 8)
