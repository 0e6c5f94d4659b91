"""OpenAI's real SDK at `/v1/responses`, against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest

from gateway.app import create_app
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.server import running

ASK = {"model": "tiny", "instructions": "You are helpful.", "input": "hi"}
REPLY = "hello world, over the lazy dog"


@pytest.fixture
async def base_url(backend: FakeBackend, model_files: ModelFiles) -> AsyncIterator[str]:
    async with running(create_app(Settings(), backend, model_files, ping_seconds=0.05)) as port:
        yield f"http://127.0.0.1:{port}/v1"


async def test_sync_client(base_url: str) -> None:
    def work() -> None:
        with openai.OpenAI(base_url=base_url, api_key="ignored", max_retries=0) as client:
            first = client.responses.create(**ASK)
            assert (first.output_text, first.status) == (REPLY, "completed")
            assert first.usage.input_tokens_details.cached_tokens == 0
            again = [{"role": "user", "content": "hi"}, *first.output, {"role": "user", "content": "And?"}]
            second = client.responses.create(**{**ASK, "input": again})
            assert second.usage.input_tokens_details.cached_tokens > 0
            events = list(client.responses.create(**ASK, stream=True))
            assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == REPLY
            with client.responses.stream(**ASK) as stream:
                stream.until_done()
                assert stream.get_final_response().output_text == REPLY

    await asyncio.to_thread(work)


async def test_async_client_streams_through_silence(base_url: str, backend: FakeBackend) -> None:
    backend.delay_seconds = 0.1  # longer than a ping is waited for
    async with openai.AsyncOpenAI(base_url=base_url, api_key="ignored", max_retries=0) as client:
        kinds = [event.type async for event in await client.responses.create(**ASK, stream=True)]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")


async def test_errors_become_the_sdks_exceptions(base_url: str, backend: FakeBackend) -> None:
    async with openai.AsyncOpenAI(base_url=base_url, api_key="ignored", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.responses.create(**{**ASK, "model": "other"})
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.BadRequestError, match="stores no responses"):
            await client.responses.create(**ASK, previous_response_id="resp_1")
        backend.fail_after = 2
        stream = await client.responses.create(**ASK, stream=True)
        with pytest.raises(openai.APIError, match="the engine died"):
            async for _ in stream:
                pass
