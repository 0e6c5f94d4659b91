"""Does the time to the first token tell one tenant what another one asked? A rank test on the real model says.

The statistic, not a duration, is what is asserted: the same test must tell a tenant's own repeated prompt from a new one,
and must not tell a prompt that another tenant just sent from a new one.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable

import httpx
import pytest

from tests.support.server import Server

pytestmark = [pytest.mark.model, pytest.mark.slow]

NUM_PAIRS = 200
NUM_WORDS = 90
_WORDS = [
    "parcel",
    "late",
    "north",
    "door",
    "blue",
    "seven",
    "gate",
    "letter",
    "weigh",
    "harbour",
    "stamp",
    "crate",
    "under",
    "review",
    "paper",
    "sign",
]


def rank_sum_p(first: list[float], second: list[float]) -> float:
    """Two-sided p of the Wilcoxon-Mann-Whitney test, by the normal approximation; ties get their mean rank.

    Source: Mann and Whitney, On a test of whether one of two random variables is stochastically larger (1947).
    """
    values = sorted(first + second)
    ranks = {value: (2 * values.index(value) + values.count(value) + 1) / 2 for value in set(values)}
    n, m = len(first), len(second)
    u = sum(ranks[value] for value in first) - n * (n + 1) / 2
    deviation = math.sqrt(n * m * (n + m + 1) / 12)
    return math.erfc(abs(u - n * m / 2) / deviation / math.sqrt(2))


def test_rank_sum_tells_shifted_samples_and_not_equal_ones() -> None:
    draw = random.Random(1)
    same = [[draw.gauss(0, 1) for _ in range(200)] for _ in range(2)]
    assert rank_sum_p(*same) > 0.05
    assert rank_sum_p(same[0], [value + 0.5 for value in same[1]]) < 0.001
    assert rank_sum_p([1.0, 2.0], [1.0, 2.0]) == pytest.approx(1.0)


@pytest.fixture(scope="module")
def keys(server: Server) -> tuple[str, str]:
    def make(client: httpx.Client, name: str) -> str:
        client.post("/tenants", json={"name": name}).raise_for_status()
        answer = client.post("/keys", json={"tenant": name})
        answer.raise_for_status()
        return str(answer.json()["key"])

    headers = {"authorization": f"Bearer {server.admin_key}"}
    with httpx.Client(base_url=f"{server.url}/admin/v1", headers=headers, timeout=60) as client:
        return make(client, "timing-a"), make(client, "timing-b")


@pytest.fixture(scope="module")
def server() -> object:  # a server of its own: making keys locks everybody else out
    with Server() as running:
        yield running


def first_token_seconds(client: httpx.Client, key: str, text: str) -> float:
    messages = [{"role": "system", "content": text}, {"role": "user", "content": "Go."}]
    body = {"model": "smollm2-135m-instruct", "messages": messages, "max_tokens": 1, "temperature": 0, "stream": True}
    started = time.perf_counter()
    with client.stream("POST", "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}) as answer:
        assert answer.status_code == 200, answer.read()
        for chunk in answer.iter_raw():
            if b"delta" in chunk:
                return time.perf_counter() - started
    raise AssertionError("no token came")


def samples(server: Server, before: str, asking: str, draw: random.Random) -> tuple[list[float], list[float]]:
    """Times of `asking` for prompts that `before` has just sent, and for prompts that nobody sent."""

    def text() -> str:
        return " ".join(draw.choice(_WORDS) for _ in range(NUM_WORDS))

    seen: list[float] = []
    new: list[float] = []
    with httpx.Client(base_url=server.url, timeout=120) as client:
        for _ in range(NUM_PAIRS):
            told = text()
            first_token_seconds(client, before, told)
            asks: list[Callable[[], None]] = [
                lambda told=told: seen.append(first_token_seconds(client, asking, told)),  # type: ignore[misc]
                lambda: new.append(first_token_seconds(client, asking, text())),
            ]
            draw.shuffle(asks)
            for ask in asks:
                ask()
    return seen, new


def test_time_to_first_token_tells_own_prompts_and_not_those_of_others(server: Server, keys: tuple[str, str]) -> None:
    draw = random.Random(7)
    mine, theirs = keys
    own = rank_sum_p(*samples(server, mine, mine, draw))
    across = rank_sum_p(*samples(server, theirs, mine, draw))
    logging.getLogger(__name__).info("p of a tenant's own prompts %.3g, of another tenant's %.3g", own, across)
    assert own < 0.01
    assert across > 0.01
