"""OpenAI's real SDK at `/v1/responses`, against a real server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx2
import openai
import pydantic
import pytest

from gateway.answer_pieces import AnswerEnd
from gateway.app import create_app
from gateway.backends.base import RequestRejectedError
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from gateway.tokenizer import Tokenizer
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.server import running
from tests.gateway.support.tiny_model import EOS_ID
from tests.gateway.test_responses import PIECES, frames_of

ASK = {"model": "tiny", "instructions": "You are helpful.", "input": "hi"}
REPLY = "hello world, over the lazy dog"


@pytest.fixture
async def base_url(backend: FakeBackend, model_files: ModelFiles) -> AsyncIterator[str]:
    async with running(create_app(Settings(), backend, model_files, ping_seconds=0.05)) as port:
        yield f"http://127.0.0.1:{port}/v1"


async def test_async_client_streams_through_silence(base_url: str, backend: FakeBackend) -> None:
    backend.delay_seconds = 0.1  # longer than a ping is waited for
    async with openai.AsyncOpenAI(base_url=base_url, api_key="ignored", max_retries=0) as client:
        kinds = [event.type async for event in await client.responses.create(**ASK, stream=True)]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")


async def test_thoughts_and_calls_become_the_sdks_items() -> None:
    frames = frames_of(PIECES, AnswerEnd("tool_calls", None, 9))
    answer = httpx2.Response(200, content=frames, headers={"content-type": "text/event-stream"})
    transport = httpx2.MockTransport(lambda _: answer)
    async with (
        httpx2.AsyncClient(transport=transport) as http_client,
        openai.AsyncOpenAI(base_url="http://x", api_key="x", http_client=http_client) as client,
        client.responses.stream(**ASK) as stream,
    ):
        snapshots = [event.snapshot async for event in stream if event.type == "response.function_call_arguments.delta"]
        final = await stream.get_final_response()
    assert snapshots == ['{"at":', '{"at":5}', "{}"]
    thought, said, *calls = final.output
    assert (thought.content[0].text, said.content[0].text) == ("Hm.", "Let me look.")
    assert [(call.name, call.parsed_arguments) for call in calls] == [("look", None), ("find", None)]


class Place(pydantic.BaseModel):
    at: int


async def test_answer_in_a_form_is_parsed(base_url: str, backend: FakeBackend, tokenizer: Tokenizer) -> None:
    backend.reply = [*tokenizer.encode('{"at": 5}').tolist(), EOS_ID]
    async with openai.AsyncOpenAI(base_url=base_url, api_key="ignored", max_retries=0) as client:
        parsed = await client.responses.parse(model="tiny", input="Where?", text_format=Place)
        assert parsed.output_parsed == Place(at=5)
        assert parsed.text.format.name == "Place"
        async with client.responses.stream(model="tiny", input="Where?", text_format=Place) as stream:
            assert (await stream.get_final_response()).output_parsed == Place(at=5)
        await client.responses.create(model="tiny", input="Where?", text={"format": {"type": "json_object"}})
        backend.reject = RequestRejectedError("it is hostile", param=backend.requests[0].sampling.grammar_field)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.parse(model="tiny", input="Where?", text_format=Place)
    assert caught.value.param == "text.format.schema"
    grammars = [request.sampling.grammar for request in backend.requests]
    assert ['"at"' in grammar for grammar in grammars] == [True, True, False, True]


TOOL = {
    "type": "function",
    "name": "look",
    "description": "Looks.",
    "parameters": {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]},
    "strict": False,
}
CALL = 'Hm.\n<tool_call>\n{"name": "look", "arguments": {"at": 5}}\n</tool_call>'


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_call_and_its_result_go_round(
    backend: FakeBackend, model_files: ModelFiles, tokenizer: Tokenizer, is_streamed: bool
) -> None:
    backend.max_model_len = 4096
    backend.reply = [*tokenizer.encode(CALL).tolist(), EOS_ID]
    app = create_app(Settings(tool_template="hermes"), backend, model_files)
    async with (
        running(app) as port,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="ignored", max_retries=0) as client,
    ):
        if is_streamed:
            async with client.responses.stream(**ASK, tools=[TOOL]) as stream:
                first = await stream.get_final_response()
        else:
            first = await client.responses.create(**ASK, tools=[TOOL])
        said, call = first.output
        assert said.content[0].text.strip() == "Hm."
        assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "look", {"at": 5})
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "4"}
        turns = [{"role": "user", "content": "hi"}, *first.output, result]
        second = await client.responses.create(**{**ASK, "input": turns}, tools=[TOOL])
    assert second.usage.input_tokens_details.cached_tokens > first.usage.input_tokens // 2
    written = [str(token) for token in backend.reply[:-1]]
    assert f" {' '.join(written)} " in f" {' '.join(map(str, backend.requests[1].token_ids))} "


async def test_engine_that_dies_while_streaming_raises(base_url: str, backend: FakeBackend) -> None:
    backend.fail_after = 2
    async with openai.AsyncOpenAI(base_url=base_url, api_key="ignored", max_retries=0) as client:
        stream = await client.responses.create(**ASK, stream=True)
        with pytest.raises(openai.APIError, match="the engine died"):
            async for _ in stream:
                pass
