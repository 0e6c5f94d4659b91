"""What Anthropic's SDK makes of an engine that is slow or dies, and of answers in a form; the rest is in `test_sdks`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pydantic
import pytest

from gateway.app import create_app
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from gateway.tokenizer import Tokenizer
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.server import running
from tests.gateway.support.tiny_model import EOS_ID

ASK: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 50,
    "system": [{"type": "text", "text": "You are helpful.", "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": "hi"}],
}


@pytest.fixture
async def base_url(backend: FakeBackend, model_files: ModelFiles) -> AsyncIterator[str]:
    async with running(create_app(Settings(), backend, model_files, ping_seconds=0.05)) as port:
        yield f"http://127.0.0.1:{port}"


async def test_async_client_streams_through_silence(base_url: str, backend: FakeBackend) -> None:
    backend.delay_seconds = 0.1  # longer than a ping is waited for
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="ignored", max_retries=0) as client:
        stream = await client.messages.create(**ASK, stream=True)
        kinds = [event.type async for event in stream]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


class Place(pydantic.BaseModel):
    at: int


async def test_answer_in_a_form_is_parsed(base_url: str, backend: FakeBackend, tokenizer: Tokenizer) -> None:
    backend.reply = [*tokenizer.encode('{"at": 5}').tolist(), EOS_ID]
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="ignored", max_retries=0) as client:
        parsed = await client.messages.parse(**ASK, output_format=Place)
    assert parsed.parsed_output == Place(at=5)
    assert '"at"' in backend.requests[0].sampling.grammar


async def test_engine_that_dies_while_streaming_raises(base_url: str, backend: FakeBackend) -> None:
    backend.fail_after = 2
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="ignored", max_retries=0) as client:
        with pytest.raises(anthropic.APIStatusError, match="the engine died"):
            async with client.messages.stream(**ASK) as stream:
                await stream.get_final_message()
