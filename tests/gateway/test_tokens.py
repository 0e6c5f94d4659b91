"""`/tokenize` and `/detokenize`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.model_files import ModelFiles
from gateway.tokenizer import Tokenizer
from tests.gateway.support.fake_backend import FakeBackend

CHAT = [{"role": "system", "content": "Be kind.\r\n"}, {"role": "user", "content": "hi <|stop|>"}]


async def tokenize(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post("/tokenize", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_text_is_tokenized_as_it_is(client: httpx.AsyncClient, tokenizer: Tokenizer) -> None:
    answer = await tokenize(client, model="tiny", prompt="hello <|stop|>", return_token_strs=True)
    assert answer["tokens"] == tokenizer.encode("hello <|stop|>").tolist()
    assert answer["tokens"][-1] == 2
    assert answer["token_strs"][-1] == "<|stop|>"
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 512
    assert (await tokenize(client, prompt="hi"))["token_strs"] is None


async def test_chat_has_the_tokens_with_which_it_is_sent(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    tokens = (await tokenize(client, model="tiny", messages=CHAT))["tokens"]
    await client.post("/v1/chat/completions", json={"model": "tiny", "messages": CHAT})
    assert tokens == list(backend.requests[0].token_ids)
    assert len(backend.requests) == 1


async def test_chat_that_is_too_long_to_be_answered_is_counted(client: httpx.AsyncClient) -> None:
    answer = await tokenize(client, messages=[{"role": "user", "content": "hello " * 600}])
    assert answer["count"] > answer["max_model_len"]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=30))
async def test_text_comes_back(client: httpx.AsyncClient, text: str) -> None:
    tokens = (await tokenize(client, prompt=text))["tokens"]
    answer = await client.post("/detokenize", json={"model": "tiny", "tokens": tokens})
    assert answer.json() == {"prompt": text}


async def test_what_texts_begin_with_is_put_before_them(model_files: ModelFiles, tmp_path: Path) -> None:
    fast = tokenizers.Tokenizer.from_file(str(model_files.tokenizer_file))
    fast.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|turn|> $A <|end|>", special_tokens=[("<|turn|>", 1), ("<|end|>", 0)]
    )
    fast.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer(tmp_path / "tokenizer.json").opening_ids == (1,)
    assert Tokenizer(model_files.tokenizer_file).opening_ids == ()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "hi", "messages": CHAT}, "prompt"),
        ("/tokenize", {"prompt": ["hi"]}, "prompt"),
        ("/tokenize", {"prompt": "hi", "add_special_tokens": 1}, "add_special_tokens"),
        ("/tokenize", {"prompt": "hi", "return_token_strs": "yes"}, "return_token_strs"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": CHAT, "add_generation_prompt": False}, "add_generation_prompt"),
        ("/tokenize", {"messages": CHAT, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"model": 5, "prompt": "hi"}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "hi"}, "tokens"),
        ("/detokenize", {"tokens": [1, True]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1, 1.0]}, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1, 2, 400_000]}, "tokens[2]"),
        ("/detokenize", {"tokens": [2**70]}, "tokens[0]"),
    ],
)
async def test_bad_field_is_named(client: httpx.AsyncClient, path: str, body: object, param: str) -> None:
    answer = await client.post(path, content=json.dumps(body))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_other_model_and_engine_that_is_down(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    assert (await client.post("/tokenize", json={"model": "other", "prompt": "hi"})).status_code == 404
    backend.is_up = False
    assert (await client.post("/tokenize", json={"prompt": "hi"})).status_code == 503
    assert (await client.post("/detokenize", json={"tokens": [50]})).status_code == 200
