"""What OpenAI's SDK makes of an engine that says or does something special; the rest is in `test_sdks`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest

from gateway.app import create_app
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from gateway.tokenizer import Tokenizer
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.server import running

MESSAGES = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": "hi"}]
REPLY = "hello world, over the lazy dog"


@pytest.fixture
async def base_url(backend: FakeBackend, model_files: ModelFiles) -> AsyncIterator[str]:
    async with running(create_app(Settings(), backend, model_files)) as port:
        yield f"http://127.0.0.1:{port}/v1"


async def test_sampling_fields_reach_the_engine(base_url: str, backend: FakeBackend) -> None:
    async with openai.AsyncOpenAI(base_url=base_url, api_key="ignored", max_retries=0) as client:
        await client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            presence_penalty=0.5,
            frequency_penalty=-1,
            logit_bias={"7": -100, "9": 0, "8": 2.5},
            extra_body={"min_p": 0.1, "repetition_penalty": 1.2, "top_k": 5, "ignore_eos": True},
        )
    sampling = backend.requests[0].sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -1)
    assert (sampling.min_p, sampling.repetition_penalty) == (0.1, 1.2)
    assert (sampling.top_k, sampling.ignore_eos) == (5, True)
    assert sampling.logit_bias == {7: -100, 8: 2.5}
    assert sampling.num_logprobs is None


async def test_logprobs_come_whole_and_streamed(base_url: str, backend: FakeBackend, tokenizer: Tokenizer) -> None:
    asked = {"model": "tiny", "messages": MESSAGES, "logprobs": True, "top_logprobs": 2}
    async with openai.AsyncOpenAI(base_url=base_url, api_key="ignored", max_retries=0) as client:
        completion = await client.chat.completions.create(**asked)
        chunks = [chunk async for chunk in await client.chat.completions.create(**asked, stream=True)]
    entries = completion.choices[0].logprobs.content
    assert [entry.logprob for entry in entries] == [-token / 8 for token in backend.reply[:-1]]
    assert "".join(entry.token for entry in entries) == REPLY
    first, token = entries[0], backend.reply[0]
    assert bytes(first.bytes) == tokenizer.decode([token]).encode()
    assert [(other.token, other.logprob) for other in first.top_logprobs] == [
        (tokenizer.decode([token]), -token / 8),
        (tokenizer.decode([token + 1]), -token / 8 - 1),
    ]
    said = [chunk.choices[0] for chunk in chunks if chunk.choices[0].delta.content]
    assert all("".join(entry.token for entry in choice.logprobs.content) == choice.delta.content for choice in said)
    assert [entry for choice in said for entry in choice.logprobs.content] == entries


async def test_engine_that_is_down_becomes_the_sdks_exception(base_url: str, backend: FakeBackend) -> None:
    backend.is_up = False
    async with openai.AsyncOpenAI(base_url=base_url, api_key="ignored", max_retries=0) as client:
        with pytest.raises(openai.InternalServerError) as down:
            await client.chat.completions.create(model="tiny", messages=MESSAGES)
        assert down.value.response.headers["retry-after"] == "3"


async def test_engine_that_dies_while_streaming_raises_in_the_loop(base_url: str, backend: FakeBackend) -> None:
    backend.fail_after = 3
    async with openai.AsyncOpenAI(base_url=base_url, api_key="ignored", max_retries=0) as client:
        stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="the engine died"):
            async for _ in stream:
                pass


async def test_leaving_a_stream_early_aborts_the_generation(base_url: str, backend: FakeBackend) -> None:
    backend.reply, backend.delay_seconds = [50] * 400, 0.005
    async with openai.AsyncOpenAI(base_url=base_url, api_key="ignored", max_retries=0) as client:
        stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        async for _ in stream:
            break
        await stream.close()
    async with asyncio.timeout(3):
        while backend.live:
            await asyncio.sleep(0.01)
    assert len(backend.aborted) == 1
