"""Log probabilities of prompts: whole, in order, of the model's own logits, whatever the chunks and the company."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import MAX_SCORED_TOKENS, SchedulerOutput, StepOutput
from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.errors import InvalidRequestError
from engine.llm_engine import LLMEngine
from engine.logprobs import measure_prompts, read_prompts
from engine.messages import SamplingParams, decode_from_worker, encode
from engine.model_runner import ModelRunner
from tests.engine.test_inputs import make_request
from tests.engine.test_model_runner import make_prompt
from tests.engine.test_scheduler import all_blocks_unreferenced, prompt_of
from tests.engine.tiny_model import reference_logits, save_tiny_model
from tests.support.chain_runner import ChainRunner, expected_prompt_logprobs, expected_tokens
from tests.support.engine_factory import Transcript, add_request, make_engine


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("max_tokens", [0, 5])
@pytest.mark.parametrize("length", [1, 2, 8, 16, 17, 33, 40])
def test_each_token_but_the_first_is_told_of(length: int, max_tokens: int, n: int) -> None:
    engine, _ = make_engine()
    add_request(engine, "a", prompt_of(length), max_tokens=max_tokens, num_prompt_logprobs=2, n=n)
    said = Transcript().run(engine)
    assert said.prompts.get("a", []) == expected_prompt_logprobs(prompt_of(length), 2)
    assert said.tokens["a"] == expected_tokens(prompt_of(length), max_tokens)
    assert len(said.finish) == n
    assert set(said.finish.values()) == {"length"}
    assert all_blocks_unreferenced(engine)


def test_nothing_of_the_prompt_is_reused_and_the_next_one_reuses_it() -> None:
    engine, runner = make_engine()
    prompt = prompt_of(41)
    for name, asked in (("before", None), ("scored", 0), ("after", None)):
        add_request(engine, name, prompt, max_tokens=1, num_prompt_logprobs=asked)
    said = Transcript().run(engine)
    assert said.admitted["scored"].reasons == {"disabled": 6}
    assert said.admitted["scored"].num_cached_tokens == 0
    assert said.admitted["after"].num_cached_tokens == 40
    assert len(said.prompts["scored"]) == 40
    computed = sum(part.num_new_tokens for step in runner.steps for part in step.requests)
    assert computed == 41 + 41 + 1
    alone, _ = make_engine()
    add_request(alone, "scored", prompt, max_tokens=0, num_prompt_logprobs=0)
    add_request(alone, "after", prompt, max_tokens=1)
    assert Transcript().run(alone).admitted["after"].num_cached_tokens == 40


def test_one_prompt_a_step_is_scored_in_bounded_chunks() -> None:
    runner = ChainRunner(num_blocks=256)
    engine, _ = make_engine(runner, max_num_batched_tokens=1024, prefill_chunk=0)
    for name in "abc":
        add_request(engine, name, prompt_of(300, seed=ord(name)), max_tokens=2, num_prompt_logprobs=1)
    add_request(engine, "plain", prompt_of(300), max_tokens=2)
    said = Transcript().run(engine)
    for name in "abc":
        assert said.prompts[name] == expected_prompt_logprobs(prompt_of(300, seed=ord(name)), 1)
    scored = [[len(part.targets) for part in step.requests if part.targets is not None] for step in runner.steps]
    assert max(map(len, scored)) == 1
    assert max(num for step in scored for num in step) == MAX_SCORED_TOKENS
    assert max(part.num_new_tokens for part in runner.steps[0].requests) == 300, "who does not ask is not slowed"


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_preemption_and_company_change_nothing(data: st.DataObject) -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=data.draw(st.integers(12, 24))), growth_reserve=0)
    wanted = {}
    for index in range(data.draw(st.integers(2, 5))):
        name, length = f"r{index}", data.draw(st.integers(1, 40))
        asked = data.draw(st.sampled_from([None, 0, 3]))
        prompt = prompt_of(length, seed=data.draw(st.integers(0, 1)))
        least = 1 if asked is None else 0
        max_tokens = data.draw(st.integers(least, 40))
        add_request(engine, name, prompt, max_tokens=max_tokens, num_prompt_logprobs=asked)
        wanted[name] = [] if asked is None else expected_prompt_logprobs(prompt, asked)
    said = Transcript().run(engine)
    assert not said.failed
    assert {name: said.prompts.get(name, []) for name in wanted} == wanted
    assert all_blocks_unreferenced(engine)


def test_a_request_that_is_preempted_while_it_is_scored_is_told_of_whole() -> None:
    engine, _ = make_engine(ChainRunner(num_blocks=8), growth_reserve=0, prefill_chunk=8)
    add_request(engine, "old", prompt_of(16), max_tokens=40)
    said = Transcript()
    said.step(engine)
    add_request(engine, "young", prompt_of(40, seed=1), max_tokens=8, num_prompt_logprobs=1)
    said.run(engine)
    assert engine.scheduler.counters.preemptions > 0, "the pool was not short: the test tests nothing"
    assert said.prompts["young"] == expected_prompt_logprobs(prompt_of(40, seed=1), 1)


def test_max_tokens_of_0_is_for_prompts_that_are_scored() -> None:
    engine, _ = make_engine()
    with pytest.raises(InvalidRequestError, match="max_tokens: got 0, wanted at least 1"):
        add_request(engine, "a", prompt_of(3), max_tokens=0)
    with pytest.raises(InvalidRequestError, match="max_tokens: got -1, wanted at least 0"):
        add_request(engine, "a", prompt_of(3), max_tokens=-1, num_prompt_logprobs=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("model_impl", ["auto", "transformers"])
@pytest.mark.parametrize("chunk", [7, 64])
def test_they_are_those_of_a_plain_forward_pass(folder, chunk: int, model_impl: str) -> None:
    config = EngineConfig(
        model_path=str(folder),
        model_impl=model_impl,
        dtype="float32",
        device="cpu",
        cache=CacheConfig(block_size=8, num_blocks=64, kv_cache_dtype="auto"),
        scheduler=SchedulerConfig(max_num_seqs=8, prefill_chunk=chunk),
    )
    engine = LLMEngine(config, ModelRunner(config), hash_seed=7)
    prompt, other = make_prompt(40), make_prompt(29, 1)
    add_request(engine, "company", make_prompt(20, 2), max_tokens=12, temperature=0.0, num_logprobs=1)
    add_request(engine, "again", prompt, max_tokens=3)
    add_request(engine, "scored", prompt, max_tokens=3, num_prompt_logprobs=4, logit_bias={3: 50.0}, n=2)
    add_request(engine, "other", other, max_tokens=0, num_prompt_logprobs=1)
    said = Transcript().run(engine)
    for name, token_ids, num in (("scored", prompt, 4), ("other", other, 1)):
        logprobs = reference_logits(folder, token_ids).log_softmax(-1)[:-1]
        targets = torch.tensor(token_ids[1:])
        told = said.prompts[name]
        torch.testing.assert_close(
            torch.tensor([token.logprob for token in told]),
            logprobs.gather(1, targets[:, None]).squeeze(1),
            atol=2e-4,
            rtol=0,
        )
        ranks = (logprobs > logprobs.gather(1, targets[:, None])).sum(1) + 1
        assert [token.rank for token in told] == ranks.tolist()
        likeliest = logprobs.topk(num)
        assert [token.top_ids for token in told] == likeliest.indices.tolist()
        torch.testing.assert_close(
            torch.tensor([token.top_logprobs for token in told]), likeliest.values, atol=2e-4, rtol=0
        )


def scored(num: int, targets: list[int]):
    request = make_request([1] * len(targets), 0, [0], sample=False)
    return dataclasses.replace(
        request,
        sampling=SamplingParams(max_tokens=0, num_prompt_logprobs=num),
        targets=np.array(targets, dtype=np.int32),
    )


def test_measuring_reads_nothing_back_from_a_device() -> None:
    table = measure_prompts(torch.randn(2, 50, device="meta"), [scored(3, [1, 2])])
    assert table is not None
    assert table.shape == (2, 8)
    assert measure_prompts(torch.randn(0, 50), [make_request([1], 0, [0])]) is None


def test_numbers_that_are_not_finite_fail_the_request() -> None:
    logits = torch.randn(2, 50)
    logits[1, 7] = torch.inf
    requests, failed = [scored(0, [1, 2])], {}
    read_prompts(measure_prompts(logits, requests), requests, failed)
    assert failed == {"r": "the model gave a logit that is not finite"}


def test_a_failed_request_is_not_told_of() -> None:
    engine, runner = make_engine()

    def fail(output: SchedulerOutput) -> StepOutput:
        return StepOutput({}, {part.request_id: "bad" for part in output.requests})

    runner.execute = fail  # type: ignore[method-assign]
    add_request(engine, "a", prompt_of(9), num_prompt_logprobs=1)
    said = Transcript().run(engine)
    assert said.failed["a"].message == "bad"
    assert not said.prompts


def test_the_message_crosses_the_border() -> None:
    engine, _ = make_engine()
    add_request(engine, "a", prompt_of(5), max_tokens=0, num_prompt_logprobs=1)
    messages = engine.step()
    assert [decode_from_worker(encode(message)) for message in messages] == messages
