"""Draws: right distribution, right cut-offs, and the same token whatever the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.batch import ScheduledRequest
from engine.messages import SamplingParams
from engine.sampler import NOT_FINITE, Sampler, uniform


def make_request(*, seed=0, position=1, temperature=1.0, **sampling):
    return ScheduledRequest(
        request_id="r",
        token_ids=np.zeros(1, dtype=np.int32),
        num_computed_tokens=position - 1,
        block_ids=[0],
        sampling=SamplingParams(max_tokens=1, temperature=temperature, **sampling),
        seed=seed,
        sample=True,
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
        {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        for temperature in (0.0, 0.3, 1.0, 1.7)
        for top_k in (0, 1, 40, 301)
        for top_p in (1.0, 0.3, 0.97)
    ]
    requests = [make_request(seed=i, position=i + 1, **sampling) for i, sampling in enumerate(settings)]
    logits = torch.randn(len(requests), vocab_size) * torch.rand(len(requests), 1) * 4  # flat rows and steep ones
    expected = [
        draw_plainly(row, request) if request.sampling.temperature else int(row.argmax())
        for row, request in zip(logits.clone(), requests, strict=True)
    ]
    assert sample(logits, requests) == expected
