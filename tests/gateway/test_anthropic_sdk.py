"""Anthropic's real SDK against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

from gateway.app import create_app
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.server import running

ASK: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 50,
    "system": [{"type": "text", "text": "You are helpful.", "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": "hi"}],
}
REPLY = "hello world, over the lazy dog"


@pytest.fixture
async def base_url(backend: FakeBackend, model_files: ModelFiles) -> AsyncIterator[str]:
    async with running(create_app(Settings(), backend, model_files, ping_seconds=0.05)) as port:
        yield f"http://127.0.0.1:{port}"


async def test_sync_client(base_url: str) -> None:
    def work() -> None:
        with anthropic.Anthropic(base_url=base_url, api_key="ignored", max_retries=0) as client:
            message = client.messages.create(**ASK)
            assert message.content[0].text == REPLY
            assert message._request_id.startswith("req-")
            assert (message.stop_reason, message.usage.cache_read_input_tokens) == ("end_turn", 0)
            again = client.messages.create(**ASK)
            assert again.usage.cache_read_input_tokens > 0
            with client.messages.stream(**ASK) as stream:
                assert "".join(stream.text_stream) == REPLY
                assert stream.get_final_message().usage.output_tokens == again.usage.output_tokens
            counted = client.messages.count_tokens(
                model="tiny", system="You are helpful.", messages=[{"role": "user", "content": "hi"}]
            )
            usage = message.usage
            assert counted.input_tokens == usage.input_tokens + usage.cache_creation_input_tokens

    await asyncio.to_thread(work)


async def test_async_client_streams_through_silence(base_url: str, backend: FakeBackend) -> None:
    backend.delay_seconds = 0.1  # longer than a ping is waited for
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="ignored", max_retries=0) as client:
        stream = await client.messages.create(**ASK, stream=True)
        kinds = [event.type async for event in stream]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


async def test_errors_become_the_sdks_exceptions(base_url: str, backend: FakeBackend) -> None:
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="ignored", max_retries=0) as client:
        with pytest.raises(anthropic.NotFoundError, match="wanted 'tiny'"):
            await client.messages.create(**{**ASK, "model": "other"})
        with pytest.raises(anthropic.BadRequestError, match="max_tokens") as caught:
            await client.messages.create(**{**ASK, "max_tokens": 0})
        assert caught.value.request_id.startswith("req-")
        assert caught.value.type == "invalid_request_error"
        backend.fail_after = 2
        with pytest.raises(anthropic.APIStatusError, match="the engine died"):
            async with client.messages.stream(**ASK) as stream:
                await stream.get_final_message()
