"""`POST /v1/completions`: prompts as they come, and OpenAI's real SDK."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.app import create_app
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from gateway.tokenizer import Tokenizer
from tests.gateway.conftest import open_client
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.server import running
from tests.gateway.support.tiny_model import write_opening_model

PATH = "/v1/completions"
TEXT = "Be kind.\r\n<|turn|>user\nhi <|stop|>" * 3
REPLY = "hello world, over the lazy dog"


def completion(prompt: Any = TEXT, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, "max_tokens": 50, **fields}


async def test_answer_in_one_piece(client: httpx.AsyncClient, backend: FakeBackend, tokenizer: Tokenizer) -> None:
    body = (await client.post(PATH, json=completion())).json()
    prompt = tokenizer.encode(TEXT).tolist()
    assert list(backend.requests[0].token_ids) == prompt
    assert body.pop("id") == backend.requests[0].request_id
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "text_completion",
        "model": "tiny",
        "choices": [{"index": 0, "text": REPLY, "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(backend.reply),
            "total_tokens": len(prompt) + len(backend.reply),
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_every_form_of_a_prompt_and_its_echo(
    client: httpx.AsyncClient, backend: FakeBackend, tokenizer: Tokenizer, stream: bool
) -> None:
    tokens = tokenizer.encode(TEXT).tolist()
    for prompt in (TEXT, [TEXT], tokens, [tokens]):
        answer = await client.post(PATH, json=completion(prompt, echo=True, stream=stream))
        assert answer.status_code == 200
        if stream:
            *frames, done, rest = answer.text.split("\n\n")
            assert (done, rest) == ("data: [DONE]", "")
            choices = [json.loads(frame.removeprefix("data: "))["choices"][0] for frame in frames]
            assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
            text = "".join(choice["text"] for choice in choices)
        else:
            text = answer.json()["choices"][0]["text"]
        assert text == TEXT + REPLY
        assert list(backend.requests[-1].token_ids) == tokens


async def test_no_rule_touches_it_and_its_prefix_is_shared(client: httpx.AsyncClient) -> None:
    await client.post(PATH, json=completion(f"{TEXT} one"))
    report = (await client.post(PATH, json=completion(f"{TEXT} two"))).headers["x-prefixgate-cache"]
    assert report.endswith("reason=hit; rules=none")
    assert "cached=0" not in report
    several = await client.post(PATH, json={**completion(""), "prompt": [f"{TEXT} two", "lazy " * 20]})
    assert "reason=never_cached" in several.headers["x-prefixgate-cache"]


async def test_sixteen_tokens_are_generated_where_nothing_is_said(
    client: httpx.AsyncClient, backend: FakeBackend
) -> None:
    await client.post(PATH, json={"model": "tiny", "prompt": "hi", "logprobs": None, "suffix": "", "n": 1})
    assert backend.requests[0].sampling.max_tokens == 16


async def test_text_begins_as_the_models_texts_do(backend: FakeBackend, tmp_path: Path) -> None:
    async with open_client(backend, write_opening_model(tmp_path)) as client:
        await client.post(PATH, json=completion("hi"))
        await client.post(PATH, json=completion("hi", add_special_tokens=False))
        counted = (await client.post("/tokenize", json={"prompt": "hi"})).json()["tokens"]
    opened, plain = (list(request.token_ids) for request in backend.requests)
    assert opened == [1, *plain] == counted


async def test_it_can_be_explained(
    backend: FakeBackend, model_files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFIXGATE_ADMIN_KEY", "open-sesame")
    async with open_client(backend, model_files) as client:
        await client.post(PATH, json=completion("one " * 20))
        answer = await client.post(PATH, json=completion("one " * 19 + "two"), headers={"x-request-id": "mine"})
        assert answer.status_code == 200
        told = await client.get("/admin/v1/requests/mine/explain", headers={"authorization": "Bearer open-sesame"})
    assert told.status_code == 200


async def test_the_sdk(backend: FakeBackend, model_files: ModelFiles) -> None:
    async with (
        running(create_app(Settings(), backend, model_files)) as port,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="ignored", max_retries=0) as client,
    ):
        whole = await client.completions.create(model="tiny", prompt=TEXT, max_tokens=50)
        assert (whole.choices[0].text, whole.choices[0].finish_reason) == (REPLY, "stop")
        stream = await client.completions.create(
            model="tiny", prompt=[50, 60], echo=True, stream=True, max_tokens=3, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].usage.completion_tokens == 3
        assert (chunks[-1].choices, chunks[-2].choices[0].finish_reason) == ([], "length")
        backend.fail_after = 2
        with pytest.raises(openai.APIError, match="the engine died"):
            async for _ in await client.completions.create(model="tiny", prompt="hi", stream=True):
                pass
