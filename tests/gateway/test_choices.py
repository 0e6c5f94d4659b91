"""`n` answers to one request: numbered, each with an end of its own, the prompt counted once."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import openai
import pytest

from gateway.app import create_app
from gateway.backends.base import BackendFailedError, GenerationRequest, RequestRejectedError, Sampling
from gateway.joined import generate_all
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from gateway.tokenizer import Tokenizer
from tests.gateway.conftest import open_client
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.server import running
from tests.gateway.support.tiny_model import EOS_ID
from tests.gateway.test_chat import chat, events

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEXTS = ["hello world", "over the lazy dog, and back", "one"]


@pytest.fixture
def backend(tokenizer: Tokenizer) -> FakeBackend:
    first, *others = [[*tokenizer.encode(text).tolist(), EOS_ID] for text in TEXTS]
    return FakeBackend(reply=first, other_replies=others)


def completion(prompt: object, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, "max_tokens": 50, **fields}


def request_of(name: str) -> GenerationRequest:
    return GenerationRequest(
        request_id=name,
        token_ids=np.array([1, 2, 3], dtype=np.int32),
        block_hashes=b"",
        scopes=[(b"scope", 0)],
        hash_epoch=1,
        sampling=Sampling(max_tokens=9),
    )


def texts_of(choices: list[dict[str, Any]]) -> dict[int, str]:
    """By choice, of a whole answer or of the chunks of a stream, chats and completions alike."""
    texts: dict[int, str] = {}
    for choice in choices:
        said = choice.get("message") or choice.get("delta") or choice
        texts[choice["index"]] = texts.get(choice["index"], "") + (said.get("content") or said.get("text") or "")
    return texts


async def test_each_answer_is_numbered_and_the_prompt_counts_once(
    client: httpx.AsyncClient, backend: FakeBackend
) -> None:
    body = (await client.post(CHAT, json=chat(n=3, seed=5))).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in body["choices"]] == TEXTS
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop"] * 3
    (request,) = backend.requests
    assert (request.sampling.n, request.sampling.seed) == (3, 5)
    num_generated = len(backend.reply) + sum(map(len, backend.other_replies))
    assert body["usage"]["completion_tokens"] == num_generated
    assert body["usage"]["prompt_tokens"] == len(request.token_ids)
    assert body["usage"]["total_tokens"] == len(request.token_ids) + num_generated


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat), (COMPLETIONS, lambda **fields: completion("hi", **fields))])
async def test_streams_interleave_and_each_begins_and_ends_once(
    client: httpx.AsyncClient, path: str, body: Any
) -> None:
    answer = await client.post(path, json=body(n=3, stream=True, stream_options={"include_usage": True}))
    *chunks, usage, done = events(answer)
    assert (usage["choices"], done) == ([], "[DONE]")
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert texts_of(choices) == dict(enumerate(TEXTS))
    numbers = [choice["index"] for choice in choices]
    assert numbers != sorted(numbers), "one after the other"
    for number in range(3):
        mine = [choice for choice in choices if choice["index"] == number]
        assert [choice["finish_reason"] for choice in mine] == [None] * (len(mine) - 1) + ["stop"]
        if path == CHAT:
            assert ["role" in choice["delta"] for choice in mine] == [True] + [False] * (len(mine) - 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_one_answer_alone(
    client: httpx.AsyncClient, backend: FakeBackend, stream: bool
) -> None:
    answer = await client.post(CHAT, json=chat(n=3, stop=["lazy"], stream=stream, logprobs=True))
    bodies = events(answer)[:-1] if stream else [answer.json()]
    choices = [choice for body in bodies for choice in body["choices"]]
    assert texts_of(choices) == {0: TEXTS[0], 1: "over the ", 2: TEXTS[2]}
    (request,) = backend.requests
    assert backend.ended == [(request.request_id, 1)]
    assert not backend.aborted
    for number in range(3):
        entries = [
            entry for c in choices if c["index"] == number and c["logprobs"] for entry in c["logprobs"]["content"]
        ]
        spelled = b"".join(bytes(entry["bytes"]) for entry in entries).decode()
        assert spelled.startswith(texts_of(choices)[number].rstrip())


async def test_length_and_end_are_told_apart(client: httpx.AsyncClient) -> None:
    body = (await client.post(CHAT, json=chat(n=3, max_tokens=3))).json()
    assert {choice["finish_reason"] for choice in body["choices"]} == {"stop", "length"}


async def test_a_failure_ends_the_stream_of_all(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    backend.fail_after = 2
    frames = events(await client.post(CHAT, json=chat(n=2, stream=True)))
    assert frames[-1]["error"]["code"] == "engine_failed"


@pytest.mark.parametrize("stream", [False, True])
async def test_every_answer_is_remembered(
    client: httpx.AsyncClient, backend: FakeBackend, tokenizer: Tokenizer, stream: bool
) -> None:
    backend.reply, *backend.other_replies = [
        [*tokenizer.encode(f"{text}\n\n").tolist(), EOS_ID] for text in ("hello", "over there")
    ]
    user = {"role": "user", "content": "hi"}
    _ = (await client.post(CHAT, json=chat(n=2, stream=stream, messages=[user]))).text
    for text in ("hello", "over there", "one"):
        backend.requests.clear()
        for ending in ("", "\n\n"):
            history = [user, {"role": "assistant", "content": text + ending}, user]
            await client.post(CHAT, json=chat(messages=history))
        trimmed, whole = (request.token_ids.tolist() for request in backend.requests)
        assert (trimmed == whole) == (text != "one")


async def test_limits_reserve_and_settle_all_answers(backend: FakeBackend, model_files: ModelFiles) -> None:
    async with open_client(backend, model_files, limit_tokens_per_minute=500) as client:
        refused = await client.post(CHAT, json=chat(n=10, max_tokens=50))
        assert refused.status_code == 400, "more than there ever are"
        answer = await client.post(CHAT, json=chat(n=3, max_tokens=40))
        spent = answer.json()["usage"]["total_tokens"]
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) == 500 - spent
        assert (await client.post(CHAT, json=chat(n=2, max_tokens=220))).status_code == 429
        assert len(backend.requests) == 1


async def test_several_prompts_are_numbered_by_prompt_first(
    client: httpx.AsyncClient, backend: FakeBackend, tokenizer: Tokenizer
) -> None:
    prompts = ["one", tokenizer.encode("two, three").tolist()]
    for stream in (False, True):
        backend.requests.clear()
        answer = await client.post(COMPLETIONS, json=completion(prompts, n=2, echo=True, stream=stream))
        bodies = events(answer)[:-1] if stream else [answer.json()]
        texts = texts_of([choice for body in bodies for choice in body["choices"]])
        assert texts == {
            0: "one" + TEXTS[0],
            1: "one" + TEXTS[1],
            2: "two, three" + TEXTS[0],
            3: "two, three" + TEXTS[1],
        }
        first, second = backend.requests
        assert first.request_id != second.request_id
        if not stream:
            usage = answer.json()["usage"]
            assert usage["prompt_tokens"] == len(first.token_ids) + len(second.token_ids)
            assert usage["completion_tokens"] == 2 * (len(backend.reply) + len(backend.other_replies[0]))
    assert not backend.live
    assert not backend.aborted


async def test_a_stop_string_ends_the_answer_of_the_right_prompt(
    client: httpx.AsyncClient, backend: FakeBackend
) -> None:
    body = (await client.post(COMPLETIONS, json=completion(["a", "b"], n=2, stop="lazy"))).json()
    assert [choice["text"] for choice in body["choices"]] == [TEXTS[0], "over the "] * 2
    assert sorted(backend.ended) == sorted((request.request_id, 1) for request in backend.requests)


async def test_where_one_prompt_is_refused_none_goes_on(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    generate = backend.generate

    async def refuse_second(request):
        if request.request_id.endswith("-1"):
            raise RequestRejectedError("prompt: got one that is not liked", param="prompt")
        return await generate(request)

    backend.generate = refuse_second  # type: ignore[method-assign]
    answer = await client.post(COMPLETIONS, json=completion(["a", "b", "c"]))
    assert answer.status_code == 400
    assert not backend.live
    assert len(backend.aborted) == 2


async def test_where_one_prompt_fails_on_the_way_the_request_does(
    client: httpx.AsyncClient, backend: FakeBackend
) -> None:
    backend.fail_after = 2
    answer = await client.post(COMPLETIONS, json=completion(["a", "b"]))
    assert answer.status_code == 503
    frames = events(await client.post(COMPLETIONS, json=completion(["a", "b"], stream=True)))
    assert frames[-1]["error"]["code"] == "engine_failed"
    assert not backend.live


async def test_leaving_a_joined_generation_stops_its_readers(backend: FakeBackend) -> None:
    backend.delay_seconds = 30
    generation = await generate_all(backend, [request_of("a"), request_of("b")])
    reading = aiter(generation)
    generation.abort()
    assert len(backend.aborted) == 2
    del reading
    backend.delay_seconds, backend.fail_after = 0, 0
    with pytest.raises(BackendFailedError):
        _ = [batch async for batch in await generate_all(backend, [request_of("c"), request_of("d")])]


@pytest.mark.parametrize("best_of", [None, 2])
async def test_best_of_may_say_what_n_says(client: httpx.AsyncClient, best_of: int | None) -> None:
    assert (await client.post(COMPLETIONS, json=completion("a", n=2, best_of=best_of))).status_code == 200


async def test_the_sdk(backend: FakeBackend, model_files: ModelFiles) -> None:
    messages: Any = [{"role": "user", "content": "hi"}]
    async with running(create_app(Settings(), backend, model_files)) as port:
        options: Any = {"base_url": f"http://127.0.0.1:{port}/v1", "api_key": "ignored", "max_retries": 0}
        async with openai.AsyncOpenAI(**options) as client:
            whole = await client.chat.completions.create(model="tiny", messages=messages, n=3)
            assert [choice.message.content for choice in whole.choices] == TEXTS
            said: dict[int, str] = {}
            async with client.chat.completions.stream(model="tiny", messages=messages, n=3) as stream:
                async for event in stream:
                    if event.type == "chunk":
                        for choice in event.chunk.choices:
                            said[choice.index] = said.get(choice.index, "") + (choice.delta.content or "")
                final = await stream.get_final_completion()
            assert said == dict(enumerate(TEXTS))
            assert [choice.message.content for choice in final.choices] == TEXTS
            several = await client.completions.create(
                model="tiny", prompt=["a", "b"], n=2, logprobs=2, echo=True, max_tokens=50
            )
            assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
            assert several.choices[2].text == "b" + TEXTS[0]
            assert several.choices[2].logprobs is not None
            assert several.choices[2].logprobs.text_offset[:2] == [0, 1]
            scored = await client.completions.create(
                model="tiny", prompt="hello world", logprobs=1, echo=True, max_tokens=0
            )
            assert scored.choices[0].text == "hello world"
            assert scored.choices[0].logprobs is not None
            assert "".join(scored.choices[0].logprobs.tokens) == "hello world"
