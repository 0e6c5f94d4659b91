"""Log probabilities: the model's own, whatever was done to the logits before the draw, and only for who asks."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from engine.errors import InvalidRequestError
from engine.logprobs import measure_logprobs, read_logprobs
from engine.messages import RequestFailed, SamplingParams, StepOutputs, TokenOutput, decode_from_worker, encode
from engine.sampler import NOT_FINITE
from tests.engine.test_deterministic import make_engine
from tests.engine.test_model_runner import make_prompt, schedule
from tests.engine.tiny_model import VOCAB_SIZE, save_tiny_model
from tests.support.engine_factory import add_request


def request(name, num_logprobs):
    asked = SamplingParams(max_tokens=1, num_logprobs=num_logprobs)
    return dataclasses.replace(schedule(name, [1], 0, 1, [0]), sampling=asked)


def test_each_row_gets_what_it_asked_for():
    torch.manual_seed(0)
    logits = torch.randn(5, 50)
    requests = [request(*asked) for asked in (("a", 3), ("b", None), ("c", 0), ("d", 99), ("e", 2))]
    tokens = torch.tensor([7, 1, 2, 3, NOT_FINITE])
    read = read_logprobs(measure_logprobs(logits, tokens, requests), requests)
    assert read.keys() == {"a", "c", "d", "e"}  # e has no token, but its row disturbs no other
    for name, row, num in (("a", 0, 3), ("c", 2, 0), ("d", 3, 50)):
        logprobs = logits[row].log_softmax(-1)
        assert read[name].logprob == logprobs[tokens[row]].item()
        assert read[name].top_ids == logits[row].argsort(descending=True)[:num].tolist()
        assert read[name].top_logprobs == [logprobs[token].item() for token in read[name].top_ids]


def test_nobody_asks_and_nothing_is_computed():
    requests = [request("a", None), request("b", None)]
    assert measure_logprobs(torch.randn(2, 50), torch.tensor([1, 2]), requests) is None
    assert read_logprobs(None, requests) == {}


def test_measuring_reads_nothing_back_from_a_device():
    table = measure_logprobs(
        torch.randn(2, 50, device="meta"),
        torch.zeros(2, dtype=torch.int64, device="meta"),
        [request("a", 4), request("b", 0)],
    )
    assert table.shape == (2, 10)


@pytest.fixture(scope="module")
def engine_and_sampler(tmp_path_factory):
    return make_engine(save_tiny_model(tmp_path_factory.mktemp("tiny")), ("float32", "int8/per_token", "none"), chunk=7)


def outputs_of(engine):
    outputs: list[TokenOutput] = []
    while engine.has_work:
        for message in engine.step():
            assert not isinstance(message, RequestFailed)
            if isinstance(message, StepOutputs):
                outputs += decode_from_worker(encode(message)).outputs
    return outputs


def test_they_are_of_the_logits_before_bias_penalties_and_temperature(engine_and_sampler):
    engine, sampler = engine_and_sampler
    edits = {"logit_bias": {5: 3.0}, "repetition_penalty": 1.5, "frequency_penalty": 0.5, "min_p": 0.05}
    add_request(
        engine, "drawn", make_prompt(20), temperature=0.7, seed=3, num_logprobs=4, ignore_eos=True, n=2, **edits
    )
    add_request(engine, "greedy", make_prompt(9, 1), temperature=0.0, num_logprobs=1, ignore_eos=True)
    add_request(engine, "silent", make_prompt(11, 2), ignore_eos=True)
    seen = 0
    positions = {"drawn": 20, "drawn/1": 20, "greedy": 9}
    for output in outputs_of(engine):
        if output.request_id == "silent":
            assert output.logprobs is None
            continue
        key = f"{output.request_id}/{output.index}" if output.index else output.request_id
        logprobs = sampler.logits[key][positions[key]].log_softmax(-1)
        (said,) = output.logprobs
        assert said.logprob == logprobs[output.token_ids[0]].item()
        assert said.top_logprobs == logprobs.topk(len(said.top_ids)).values.tolist()
        assert len(said.top_ids) == (1 if key == "greedy" else 4)
        assert key != "greedy" or said.top_ids == output.token_ids
        positions[key] += 1
        seen += 1
    assert seen == 24


def answer(engine, name, **sampling):
    add_request(engine, name, make_prompt(30, 4), ignore_eos=True, **sampling)
    return [token for output in outputs_of(engine) for token in output.token_ids if output.request_id == name]


def test_edits_reach_the_answer_and_follow_it(engine_and_sampler):
    engine, _ = engine_and_sampler
    assert answer(engine, "biased", temperature=0.0, logit_bias={17: 100.0}) == [17] * 8
    greedily = {"temperature": 0.0, "logit_bias": dict.fromkeys((17, 18, 19), 100.0), "max_tokens": 12}
    assert set(answer(engine, "favourites", **greedily)) <= {17, 18, 19}
    spread = answer(engine, "spread", presence_penalty=50.0, **greedily)
    assert sorted(spread[:3]) == [17, 18, 19]  # each once, before any comes again
    banned = dict.fromkeys(range(VOCAB_SIZE - 3), -100.0)
    assert min(answer(engine, "banned", temperature=2.0, logit_bias=banned)) >= VOCAB_SIZE - 3


def test_a_seeded_answer_is_the_same_alone_and_in_company(engine_and_sampler):
    engine, _ = engine_and_sampler
    asked = {"seed": 11, "repetition_penalty": 1.4, "presence_penalty": 1.0, "min_p": 0.02, "num_logprobs": 2}
    alone = answer(engine, "alone", **asked)
    add_request(engine, "neighbour", make_prompt(13, 7), logit_bias={2: 5.0}, frequency_penalty=2.0, num_logprobs=5)
    add_request(engine, "quiet", make_prompt(10, 8))
    assert answer(engine, "together", **asked) == alone


@pytest.mark.parametrize("token", [-1, VOCAB_SIZE])
def test_a_bias_on_a_token_that_is_not_there_is_refused(engine_and_sampler, token):
    engine, _ = engine_and_sampler
    with pytest.raises(
        InvalidRequestError, match=f"logit_bias: got token {token}, wanted 0 to {VOCAB_SIZE - 1}"
    ) as caught:
        add_request(engine, "outside", [1, 2], logit_bias={3: 1.0, token: 1.0})
    assert caught.value.param == "logit_bias"
