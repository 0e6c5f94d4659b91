"""Both providers' SDKs through a gateway without torch, in front of an engine that is not ours."""

from __future__ import annotations

import json

import anthropic
import httpx
import openai
import pytest

from tests.foreign.conftest import MODEL

pytestmark = [pytest.mark.foreign, pytest.mark.model]

SYSTEM = "You are the friendly guide of a small museum of clocks, and answer in one short sentence." * 4
ASKED = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Name the capital of France."}]


def client_of(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def test_a_chat_has_usage_and_the_engines_own_words(gateway_url: str, engine_url: str) -> None:
    answers = []
    for url in (engine_url, gateway_url):
        with client_of(url) as client:
            answers.append(
                client.chat.completions.create(model=MODEL, messages=ASKED, temperature=0, max_tokens=16, seed=1)
            )
    direct, through = answers
    assert through.choices[0].message.content
    assert through.usage.prompt_tokens == direct.usage.prompt_tokens
    assert through.usage.prompt_tokens_details.cached_tokens >= through.usage.prompt_tokens - 1


async def test_an_async_stream_tells_its_usage(gateway_url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway_url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=ASKED, max_tokens=16, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage.completion_tokens > 0


def test_output_by_a_schema_fits_it(gateway_url: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    with client_of(gateway_url) as client:
        answer = client.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=40, response_format=wanted)
    assert isinstance(json.loads(answer.choices[0].message.content)["n"], int)


def test_a_stream_that_is_left_early_frees_the_engine(gateway_url: str, engine_url: str) -> None:
    with client_of(gateway_url) as client:
        with client.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=2000, stream=True) as stream:
            next(iter(stream))
        after = client.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=2, timeout=20)
    assert after.choices
    assert not any(slot["is_processing"] for slot in httpx.get(f"{engine_url}/slots").json())


def test_completions_responses_models_and_tokens(gateway_url: str) -> None:
    with client_of(gateway_url) as client:
        assert client.completions.create(model=MODEL, prompt="One, two,", max_tokens=4).usage.completion_tokens == 4
        response = client.responses.create(model=MODEL, instructions=SYSTEM, input="Hello!", max_output_tokens=8)
        events = list(client.responses.create(model=MODEL, input="Hello!", max_output_tokens=4, stream=True))
        assert client.models.list().data
    assert response.output_text
    assert response.usage.input_tokens > 50
    assert events[-1].type == "response.completed"
    tokens = httpx.post(f"{gateway_url}/tokenize", json={"content": "hi there"}).json()["tokens"]
    assert httpx.post(f"{gateway_url}/detokenize", json={"tokens": tokens}).json()["content"] == "hi there"


def test_an_error_is_the_engines_own(gateway_url: str) -> None:
    with client_of(gateway_url) as client, pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=ASKED, response_format={"type": "nonsense"})


def test_anthropics_sdk_chats_streams_and_counts(gateway_url: str) -> None:
    with anthropic.Anthropic(base_url=gateway_url, api_key="none", max_retries=0) as client:
        asked = {"model": MODEL, "system": SYSTEM, "messages": [{"role": "user", "content": "Hello!"}]}
        counted = client.messages.count_tokens(**asked)
        message = client.messages.create(**asked, max_tokens=8)
        with client.messages.stream(**asked, max_tokens=8) as stream:
            streamed = stream.get_final_message()
    assert httpx.post(f"{gateway_url}/v1/messages", json={"max_tokens": 1}).json()["type"] == "error"
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens
    assert message.content[0].text
    assert streamed.usage.cache_read_input_tokens > counted.input_tokens // 2
