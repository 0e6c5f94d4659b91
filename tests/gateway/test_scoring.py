"""Log probabilities of prompts and of completions, in vLLM's shape and in OpenAI's older one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.completion_logprobs import CompletionLogprobs
from gateway.logprobs import entry_of
from gateway.tokenizer import Tokenizer
from tests.gateway.conftest import open_client
from tests.gateway.support.fake_backend import FakeBackend, logprobs_of
from tests.gateway.support.tiny_model import EOS_ID, write_opening_model
from tests.gateway.test_chat import chat, events
from tests.gateway.test_choices import completion

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEXT = "a😀b, over the dog"
REPLY = "hello 😀 world"


@pytest.fixture
def backend(tokenizer: Tokenizer) -> FakeBackend:
    return FakeBackend(reply=[*tokenizer.encode(REPLY).tolist(), EOS_ID])


def merged(answer: httpx.Response, stream: bool) -> tuple[str, dict[str, list[Any]]]:
    """Text and log probabilities of choice 0."""
    bodies = events(answer)[:-1] if stream else [answer.json()]
    choices = [choice for body in bodies for choice in body["choices"]]
    said: dict[str, list[Any]] = {}
    for choice in choices:
        for name, entries in (choice["logprobs"] or {}).items():
            said.setdefault(name, []).extend(entries)
    return "".join(choice["text"] for choice in choices), said


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 50])
async def test_completions_tell_of_each_token_where_it_begins(
    client: httpx.AsyncClient, backend: FakeBackend, tokenizer: Tokenizer, echo: bool, stream: bool, max_tokens: int
) -> None:
    if not echo and not max_tokens:
        return
    body = completion(TEXT, logprobs=2, echo=echo, stream=stream, max_tokens=max_tokens)
    text, said = merged(await client.post(COMPLETIONS, json=body), stream)
    assert text == (TEXT if echo else "") + (REPLY if max_tokens else "")
    prompt = tokenizer.encode(TEXT).tolist() if echo else []
    tokens = prompt + (backend.reply[:-1] if max_tokens else [])
    assert said["tokens"] == [tokenizer.token_bytes(token).decode(errors="replace") for token in tokens]
    wanted: list[float | None] = [-token / 8 for token in tokens]
    if echo:
        wanted[0] = None
    assert said["token_logprobs"] == wanted
    before = [tokenizer.decode(tokens[:end]).rstrip("\ufffd") for end in range(len(tokens))]
    assert said["text_offset"] == [len(part) for part in before]
    for token, spelled, top, logprob in zip(
        tokens, said["tokens"], said["top_logprobs"], said["token_logprobs"], strict=True
    ):
        if logprob is None:
            assert top is None
        else:
            other = tokenizer.token_bytes(token + 1).decode(errors="replace")
            assert top == {spelled: logprob} | {other: logprob - 1}
    sampling = backend.requests[-1].sampling
    assert (sampling.num_logprobs, sampling.num_prompt_logprobs) == (2, 2 if echo else None)
    assert sampling.max_tokens == max_tokens


async def test_with_no_likely_ones_each_token_is_told_of_alone(client: httpx.AsyncClient) -> None:
    answer = await client.post(COMPLETIONS, json=completion(TEXT, logprobs=0))
    said = answer.json()["choices"][0]["logprobs"]
    pairs = zip(said["tokens"], said["token_logprobs"], strict=True)
    assert said["top_logprobs"] == [{token: logprob} for token, logprob in pairs]


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat()), (COMPLETIONS, completion(TEXT))])
async def test_prompt_logprobs_are_those_of_vllm(
    client: httpx.AsyncClient, backend: FakeBackend, tokenizer: Tokenizer, path: str, body: dict[str, Any]
) -> None:
    answer = (await client.post(path, json={**body, "prompt_logprobs": 2})).json()
    told = answer["prompt_logprobs"] if path == CHAT else answer["choices"][0]["prompt_logprobs"]
    tokens = backend.requests[0].token_ids.tolist()
    assert len(told) == len(tokens)
    assert told[0] is None

    def one(token: int, logprob: float, rank: int) -> dict[str, Any]:
        return {
            "logprob": logprob,
            "rank": rank,
            "decoded_token": tokenizer.token_bytes(token).decode(errors="replace"),
        }

    for token, said in zip(tokens[1:], told[1:], strict=True):
        assert said == {
            str(token): one(token, -token / 8, 1),
            str(token + 1): one(token + 1, -token / 8 - 1, 2),
        }
    assert answer["choices"][0]["logprobs"] is None
    plain = (await client.post(path, json=body)).json()
    assert "prompt_logprobs" not in json.dumps(plain)


async def test_both_fields_may_ask_for_different_numbers(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    body = completion("hello, world", echo=True, logprobs=1, prompt_logprobs=3)
    (choice,) = (await client.post(COMPLETIONS, json=body)).json()["choices"]
    assert backend.requests[0].sampling.num_prompt_logprobs == 3
    assert len(choice["prompt_logprobs"][1]) == 3
    assert len(choice["logprobs"]["top_logprobs"][1]) == 1


async def test_several_prompts_each_have_their_own(client: httpx.AsyncClient, tokenizer: Tokenizer) -> None:
    prompts = ["one", "two, three"]
    body = completion(prompts, n=2, prompt_logprobs=0, echo=True, logprobs=0, max_tokens=0)
    choices = (await client.post(COMPLETIONS, json=body)).json()["choices"]
    for number, choice in enumerate(choices):
        tokens = tokenizer.encode(prompts[number // 2]).tolist()
        assert [next(iter(said)) for said in choice["prompt_logprobs"][1:]] == [str(token) for token in tokens[1:]]
        assert choice["text"] == "".join(choice["logprobs"]["tokens"]) == prompts[number // 2]
        assert choice["finish_reason"] == "length"


async def test_a_chat_may_be_scored_alone(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    answer = (await client.post(CHAT, json=chat(prompt_logprobs=0, max_tokens=0))).json()
    assert answer["choices"][0]["message"]["content"] == ""
    assert answer["usage"]["completion_tokens"] == 0
    assert len(answer["prompt_logprobs"]) == len(backend.requests[0].token_ids)


async def test_a_prompt_that_is_scored_may_fill_the_model(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    tokens = [20] * backend.max_model_len
    scored = await client.post(COMPLETIONS, json=completion(tokens, echo=True, logprobs=0, max_tokens=0))
    assert scored.status_code == 200
    for body in (completion(tokens, max_tokens=1), completion([*tokens, 20], echo=True, logprobs=0, max_tokens=0)):
        assert (await client.post(COMPLETIONS, json=body)).json()["error"]["code"] == "context_length_exceeded"


async def test_tokens_that_the_client_did_not_write_have_no_place(backend: FakeBackend, tmp_path: Path) -> None:
    async with open_client(backend, write_opening_model(tmp_path)) as client:
        body = completion("hello, world", echo=True, logprobs=0, max_tokens=0)
        said = (await client.post(COMPLETIONS, json=body)).json()["choices"][0]["logprobs"]
    assert said["tokens"][0] == "<|turn|>"
    assert said["text_offset"][:3] == [0, 0, len(said["tokens"][1])]


def test_parts_go_on_where_the_last_one_ended(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode(TEXT).tolist()
    entries = [entry_of(tokenizer, token, logprobs_of(token, 0)) for token in tokens]
    whole = CompletionLogprobs().print(entries)
    for cut in range(len(entries) + 1):
        by_parts = CompletionLogprobs()
        parts = [by_parts.print(entries[:cut]), by_parts.print(entries[cut:])]
        assert {name: parts[0][name] + parts[1][name] for name in whole} == whole
