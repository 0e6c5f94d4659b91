"""Draws: right distribution, right cut-offs, and the same token whatever the batch."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import ScheduledRequest
from engine.logit_edits import edits_of
from engine.messages import SamplingParams
from engine.sampler import NOT_FINITE, Sampler, _edit, _keep_nucleus, _mask, _nucleus_threshold, uniform


def make_request(*, seed=0, position=1, temperature=1.0, prompt=(), answer=(), **sampling):
    params = SamplingParams(max_tokens=1, temperature=temperature, **sampling)
    edits = edits_of(params, np.array(prompt, dtype=np.int32))
    for token in answer if edits is not None else ():
        edits.append(token)
    return ScheduledRequest(
        request_id="r",
        token_ids=np.zeros(1, dtype=np.int32),
        num_computed_tokens=position - 1,
        block_ids=[0],
        sampling=params,
        seed=seed,
        sample=True,
        edits=edits,
    )


def sample(logits, requests):
    return Sampler().sample(logits, requests).tolist()


def draws(logits, count, **sampling):
    """Tokens at positions 1 … count."""
    requests = [make_request(seed=3, position=position, **sampling) for position in range(1, count + 1)]
    return sample(logits.expand(count, -1), requests)


LOGITS = torch.tensor([0.5, 0.3, 0.1, 0.06, 0.04]).log()


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1e-4])
def test_cold_is_greedy(temperature):
    assert set(draws(LOGITS, 50, temperature=temperature)) == {0}


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [(1.0, [0.5, 0.3, 0.1, 0.06, 0.04]), (0.5, [0.7076, 0.2547, 0.0283, 0.0102, 0.0045])],
)
def test_draws_follow_the_distribution(temperature, expected):
    count = 4000
    frequencies = np.bincount(draws(LOGITS, count, temperature=temperature), minlength=5) / count
    np.testing.assert_allclose(frequencies, expected, atol=4 * 0.5 / count**0.5)  # four standard deviations


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.45}, {0}),
        ({"top_p": 0.55}, {0, 1}),
        ({"top_p": 0.85}, {0, 1, 2}),
        ({"top_p": 1e-9}, {0}),
        ({"top_k": 2, "top_p": 0.6}, {0}),  # top_p acts on what top_k left: 0.5 of 0.8
        ({"top_k": 2, "top_p": 0.65}, {0, 1}),
        ({"min_p": 0.59}, {0, 1}),  # 0.3 is 0.6 of the likeliest
        ({"min_p": 0.61}, {0}),
        ({"min_p": 0.1}, {0, 1, 2, 3}),
        ({"min_p": 1.0}, {0}),
        ({"min_p": 0.61, "temperature": 2.0}, {0, 1}),  # of the scaled ones: 0.6 is 0.77 now
        ({"min_p": 0.5, "top_p": 0.62}, {0}),  # top_p acts on what min_p left: 0.5 of 0.8
    ],
)
def test_cut_offs_keep_exactly_the_likely_tokens(sampling, kept):
    assert set(draws(LOGITS, 600, **sampling)) == kept


def test_a_nucleus_wider_than_the_first_guess_is_found():
    logits = torch.linspace(0.01, 0.0, 1000)  # half of the mass is in the first 499 tokens
    assert 480 < max(draws(logits, 600, top_p=0.5)) < 500


def test_a_draw_depends_on_seed_and_position_alone():
    torch.manual_seed(0)
    logits = torch.randn(6, 500)
    requests = [
        make_request(seed=seed, position=position, top_p=top_p)
        for seed, position, top_p in ((1, 5, 1.0), (1, 6, 0.9), (2, 5, 0.9), (2**63, 5, 1.0), (0, 1, 0.5), (7, 7, 1.0))
    ]
    together = sample(logits, requests)
    order = [3, 0, 5, 1, 4, 2]
    assert sample(logits[order], [requests[i] for i in order]) == [together[i] for i in order]
    assert [sample(logits[i : i + 1], requests[i : i + 1])[0] for i in range(6)] == together


def test_uniform_is_pinned_and_spread():
    assert uniform(0, 0) == pytest.approx(0.6524484863740322)
    values = [uniform(seed, position) for seed in range(40) for position in range(50)]
    assert len(set(values)) == 2000
    assert 0 <= min(values) < 0.01
    assert 0.99 < max(values) < 1
    assert abs(np.mean(values) - 0.5) < 0.03
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.1


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_fails_alone(bad, temperature):
    logits = LOGITS.repeat(3, 1)
    logits[1, 4] = bad
    tokens = sample(logits, [make_request(temperature=temperature) for _ in range(3)])
    assert tokens[1] == NOT_FINITE
    assert tokens[0] == tokens[2] != NOT_FINITE


def draw_plainly(logits, request):
    """One row, token by token: the readable answer."""
    sampling = request.sampling
    scaled = logits / np.float32(sampling.temperature)
    if sampling.min_p:
        scaled[scaled < scaled.max() + np.float32(np.log(sampling.min_p))] = -torch.inf
    order = scaled.argsort(descending=True, stable=True).tolist()
    if 0 < sampling.top_k < len(scaled):
        scaled[scaled < scaled[order[sampling.top_k - 1]]] = -torch.inf
    probabilities = scaled.softmax(-1)
    if sampling.top_p < 1.0:
        mass, smallest = 0.0, probabilities[order[-1]]
        for token in order:
            mass += float(probabilities[token])
            if mass >= sampling.top_p:
                smallest = probabilities[token]
                break
        probabilities[probabilities < smallest] = 0.0
    point = float(probabilities.double().sum()) * uniform(request.seed, request.num_computed_tokens + 1)
    cumulative = 0.0
    for token, probability in enumerate(probabilities.tolist()):
        cumulative += probability
        if cumulative > point:
            return token
    return len(scaled) - 1


@pytest.mark.parametrize("vocab_size", [1, 7, 300, 5000])
def test_a_mixed_batch_draws_what_each_row_draws_alone(vocab_size):
    torch.manual_seed(vocab_size)
    settings = [
        {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        for temperature in (0.0, 0.3, 1.0, 1.7)
        for top_k in (0, 1, 40, 301)
        for top_p in (1.0, 0.3, 0.97)
        for min_p in (0.0, 0.2)
    ]
    requests = [make_request(seed=i, position=i + 1, **sampling) for i, sampling in enumerate(settings)]
    logits = torch.randn(len(requests), vocab_size) * torch.rand(len(requests), 1) * 4  # flat rows and steep ones
    expected = [
        draw_plainly(row, request) if request.sampling.temperature else int(row.argmax())
        for row, request in zip(logits.clone(), requests, strict=True)
    ]
    assert sample(logits, requests) == expected


def test_on_a_device_nothing_is_read_back():
    """A tensor on the meta device has no values: whatever looked at one would raise."""
    edited = {"min_p": 0.1, "presence_penalty": 1.0, "logit_bias": {7: 2.0}, "answer": [3, 3, 4]}
    requests = [
        make_request(temperature=t, top_k=k, top_p=p, **edited)
        for t, k, p in ((0.0, 0, 1.0), (1.0, 40, 0.9), (0.5, 0, 0.5))
    ]
    logits = torch.randn(3, 5000, device="meta")
    assert Sampler().sample(logits, requests).device.type == "meta"
    assert Sampler().sample(logits[1:], requests[1:]).shape == (2,)


def test_the_whole_sort_of_a_device_keeps_what_the_guesses_of_a_cpu_keep():
    torch.manual_seed(1)
    probabilities = (torch.randn(30, 5000) * torch.rand(30, 1) * 6).softmax(-1)
    top_p = torch.linspace(0.05, 1.0, 30, dtype=torch.float64)[:, None]
    threshold, _ = _nucleus_threshold(probabilities, top_p, 5000)
    assert torch.equal(_keep_nucleus(probabilities, top_p), probabilities.masked_fill(probabilities < threshold, 0.0))


def edit_plainly(logits, request_fields):
    """One row, token by token, as the API's fields are explained to users."""
    prompt, answer = request_fields["prompt"], request_fields["answer"]
    edited = logits.clone()
    for token in range(len(logits)):
        value = logits[token] + np.float32(request_fields["logit_bias"].get(token, 0.0))
        if token in prompt or token in answer:
            repetition = np.float32(request_fields["repetition_penalty"])
            value = value / repetition if value > 0 else value * repetition
        count = answer.count(token)
        presence, frequency = request_fields["presence_penalty"], request_fields["frequency_penalty"]
        edited[token] = value - np.float32(presence * (count > 0) + frequency * count)
    return edited


VOCAB_SIZE = 40
TOKENS = st.integers(0, VOCAB_SIZE - 1)
EDITS = st.fixed_dictionaries(
    {
        "prompt": st.lists(TOKENS, max_size=20),
        "answer": st.lists(TOKENS, max_size=30),
        "logit_bias": st.dictionaries(TOKENS, st.floats(-100, 100, width=32), max_size=4),
        "repetition_penalty": st.sampled_from([1.0, 0.5, 1.3, 10.0]),
        "presence_penalty": st.sampled_from([0.0, -2.0, 0.7]),
        "frequency_penalty": st.sampled_from([0.0, 2.0, -0.3]),
    }
)


@given(st.lists(EDITS, min_size=1, max_size=5), st.integers(0, 2**32), st.sampled_from([0.0, 0.8]))
def test_bias_and_penalties_do_what_they_say_and_only_to_their_row(rows, seed, temperature):
    logits = torch.randn(len(rows), VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 4
    given_logits = logits.clone()
    requests = [make_request(temperature=temperature, **row) for row in rows]
    expected = torch.stack([edit_plainly(row, fields) for row, fields in zip(logits, rows, strict=True)])
    assert torch.equal(_edit(logits, requests), expected)
    tokens = sample(logits, requests)
    assert torch.equal(logits, given_logits), "others look at the model's own"
    for row, token, request in zip(expected, tokens, requests, strict=True):
        assert token == (draw_plainly(row, request) if temperature else int(row.argmax()))


def test_a_long_answer_outgrows_no_table():
    answer = list(range(1000)) * 2
    fields = {"prompt": [1, 2], "answer": answer, "logit_bias": {999: 1.0, 1500: -1.0}, "repetition_penalty": 2.0}
    fields |= {"presence_penalty": 0.5, "frequency_penalty": 0.25}
    logits = torch.linspace(5.0, -5.0, 2000)
    columns = make_request(**fields).edits.columns
    assert len(set(columns[0])) == columns.shape[1] == 1001
    assert sample(logits[None], [make_request(temperature=0.0, **fields)]) == [
        int(edit_plainly(logits, fields).argmax())
    ]


def test_nothing_is_kept_for_who_asks_for_nothing():
    assert make_request(min_p=0.5, top_k=3, prompt=[1, 2]).edits is None


class MaskOf:
    """In place of a grammar: it allows just these tokens."""

    def __init__(self, allowed):
        self.allowed = allowed

    def fill_mask(self, mask):
        mask[:] = 0
        for token in self.allowed:
            mask[token // 8] |= 1 << token % 8


def mask_one_by_one(logits, requests):
    """The reference."""
    masked = logits.clone()
    for row, request in enumerate(requests):
        for token in range(logits.shape[1]):
            if request.grammar is not None and token not in request.grammar.allowed:
                masked[row, token] = -math.inf
    return masked


@settings(max_examples=50)
@given(data=st.data(), num_rows=st.integers(1, 4), vocab_size=st.integers(1, 70), seed=st.integers(0, 99))
def test_masks_leave_what_they_allow_bit_for_bit_and_nothing_else(data, num_rows, vocab_size, seed) -> None:
    logits = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3
    for token, value in enumerate([-0.0, 0.0, 1e-45, 3e38, -3e38, -math.inf][:vocab_size]):
        logits[:, token] = value
    before = logits.clone()
    allowed = st.none() | st.sets(st.integers(0, vocab_size - 1))
    requests = [
        dataclasses.replace(make_request(), grammar=None if tokens is None else MaskOf(tokens))
        for tokens in data.draw(st.lists(allowed, min_size=num_rows, max_size=num_rows))
    ]
    masked = _mask(logits, requests)
    assert masked.view(torch.int32).equal(mask_one_by_one(logits, requests).view(torch.int32))
    assert logits.view(torch.int32).equal(before.view(torch.int32)), "others look at the logits"
