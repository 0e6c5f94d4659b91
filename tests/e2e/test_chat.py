"""The README's promises on the real model, through the real SDK and the real curl."""

from __future__ import annotations

import asyncio
import json
import random
import re
import shlex
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.support.server import Server
from tests.support.services import require_program

pytestmark = pytest.mark.model

MODEL = "smollm2-135m-instruct"
README = Path(__file__).parents[2] / "README.md"


def system_text(words: int, seed: int) -> str:
    rng = random.Random(seed)
    vocabulary = [
        "order",
        "parcel",
        "refund",
        "customer",
        "account",
        "delivery",
        "policy",
        "agent",
        "reply",
        "polite",
        "answer",
        "invoice",
        "city",
    ]
    return " ".join(rng.choice(vocabulary) for _ in range(words))


def messages(user: str, system: str = "You are a helpful assistant.") -> list:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as sdk:
        yield sdk


@pytest.fixture
async def async_client(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def test_sdk_answer_is_sensible_and_greedy_answers_repeat(client: openai.OpenAI) -> None:
    ask = lambda: client.chat.completions.create(  # noqa: E731
        model=MODEL, messages=messages("Name the capital of France."), temperature=0, max_tokens=30
    )
    first, second = ask(), ask()
    assert "Paris" in first.choices[0].message.content
    assert first.choices[0].message.content == second.choices[0].message.content
    assert first.choices[0].finish_reason == "stop"
    assert first.usage.total_tokens == first.usage.prompt_tokens + first.usage.completion_tokens
    assert second.usage.prompt_tokens_details.cached_tokens > 0


def test_sdk_stream_carries_the_same_text_and_the_usage(client: openai.OpenAI) -> None:
    body = {"model": MODEL, "messages": messages("Name three colours."), "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**body)
    chunks = list(client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [
        whole.choices[0].finish_reason
    ]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


async def test_async_sdk_many_at_once_equal_one_by_one(async_client: openai.AsyncOpenAI) -> None:
    async def ask(number: int) -> str:
        answer = await async_client.chat.completions.create(
            model=MODEL,
            messages=messages(f"Count from {number} to {number + 3}."),
            temperature=0.7,
            seed=5,
            max_tokens=12,
        )
        return answer.choices[0].message.content

    together = await asyncio.gather(*(ask(number) for number in range(6)))
    assert all(together)
    assert len(set(together)) > 1


def test_seeded_sampling_repeats_and_stop_strings_cut(client: openai.OpenAI) -> None:
    body = {"model": MODEL, "messages": messages("Write a list of animals."), "max_tokens": 40, "temperature": 1.0}
    # The first one computes the prompt, the others read it from the cache: in bfloat16 that may round differently.
    texts = [client.chat.completions.create(**body, seed=3).choices[0].message.content for _ in range(3)]
    assert texts[1] == texts[2]
    assert client.chat.completions.create(**body, seed=4).choices[0].message.content != texts[2]
    counted = client.chat.completions.create(
        model=MODEL, messages=messages("Count: one, two, three, four"), temperature=0, max_tokens=60, stop=["three"]
    )
    assert "three" not in counted.choices[0].message.content


def test_shared_system_prompt_is_reused_across_users_and_reported_in_the_header(server: Server) -> None:
    system = system_text(900, seed=1)

    def ask(user: str) -> httpx.Response:
        body = {"model": MODEL, "messages": messages(user, system), "max_tokens": 4, "temperature": 0}
        return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)

    cold, warm = ask("Where is my parcel?"), ask("I want a refund.")
    details = warm.json()["usage"]
    cached = details["prompt_tokens_details"]["cached_tokens"]
    shared_at_least = len(system.split())  # one token a word, and more
    assert cold.json()["usage"]["prompt_tokens_details"]["cached_tokens"] < 64
    assert cached >= shared_at_least // 32 * 32
    header = warm.headers["x-prefixgate-cache"]
    assert f"cached={cached}" in header
    assert f"prompt={details['prompt_tokens']}" in header


def test_metrics_two_scrapes_around_a_cached_request_differ_by_its_tokens(server: Server) -> None:
    body = {
        "model": MODEL,
        "messages": messages("A question.", system_text(100, seed=2)),
        "max_tokens": 5,
        "temperature": 0,
    }
    httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    before = server.metrics()
    usage = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()["usage"]
    after = server.metrics()
    grown = {series: after[series] - before.get(series, 0) for series in after}
    assert grown["prefixgate_prompt_tokens_total"] == usage["prompt_tokens"]
    assert grown["prefixgate_cached_tokens_total"] == usage["prompt_tokens_details"]["cached_tokens"] > 0
    assert grown["prefixgate_generated_tokens_total"] == usage["completion_tokens"]


def test_readme_curl_line_answers(server: Server) -> None:
    curl = require_program("curl", package="curl")
    line = re.search(r"^curl .*?(?:(?<!\\)\n)", README.read_text(), re.MULTILINE | re.DOTALL)
    assert line, "README has no curl line"
    command = shlex.split(line.group().replace("\\\n", " ").replace("http://127.0.0.1:8000", server.url))
    answer = subprocess.run(
        [curl, *command[1:], "--silent"], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    assert "Paris" in json.loads(answer)["choices"][0]["message"]["content"]


def test_serve_prints_where_it_listens_and_a_line_to_try(server: Server) -> None:
    assert server.url in server.log()
    assert "curl" in server.log()


@pytest.mark.slow
def test_per_channel_answers_the_same_cold_and_from_the_cache() -> None:
    body = {
        "model": MODEL,
        "messages": messages("Name the capital of France.", f"You are a helpful assistant. {system_text(60, 3)}"),
        "temperature": 0,
        "max_tokens": 40,  # more than a block: one is filled, quantized and read while it answers
    }
    with Server(["--kv-cache-dtype", "int8/per_channel", "--dtype", "float32"]) as server:
        cold, hit = (httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120).json() for _ in range(2))
        assert "int8/per_channel runs on torch's kernels" in server.log()
    assert cold["choices"][0]["message"]["content"] == hit["choices"][0]["message"]["content"]
    assert "Paris" in hit["choices"][0]["message"]["content"]
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    cached = hit["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= 64
    assert cached % 32 == 0


def test_serve_refuses_a_limit_that_the_model_does_not_have() -> None:
    with pytest.raises(RuntimeError, match="max-model-len") as error, Server(["--max-model-len", "999999"]):
        pass
    assert "status 1" in str(error.value)
    assert "999999" in str(error.value)
