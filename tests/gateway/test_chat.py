from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from gateway.app import create_app
from gateway.backends.base import RequestRejectedError
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from gateway.tokenizer import Tokenizer
from tests.gateway.conftest import open_client
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.server import running
from tests.gateway.support.tiny_model import EOS_ID, TOOL_TEMPLATE, write_model

PATH = "/v1/chat/completions"
SYSTEM = {"role": "system", "content": "You are a helpful assistant that answers every question."}
REPLY = "hello world, over the lazy dog"


def chat(content: str = "hi", **fields: object) -> dict[str, object]:
    return {"model": "tiny", "messages": [SYSTEM, {"role": "user", "content": content}], **fields}


def events(answer: httpx.Response) -> list[Any]:
    frames = answer.text.split("\n\n")
    assert frames.pop() == ""
    data = [frame.removeprefix("data: ") for frame in frames if not frame.startswith(":")]
    return [frame if frame == "[DONE]" else json.loads(frame) for frame in data]


async def test_answer_in_one_piece(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    answer = await client.post(PATH, json=chat())
    body = answer.json()
    num_prompt_tokens = len(backend.requests[0].token_ids)
    assert answer.status_code == 200
    assert body.pop("id") == backend.requests[0].request_id
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "chat.completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": REPLY, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": len(backend.reply),
            "total_tokens": num_prompt_tokens + len(backend.reply),
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_stream_frames(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    answer = await client.post(PATH, json=chat(stream=True))
    *chunks, done = events(answer)
    assert done == "[DONE]"
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert {(chunk["id"], chunk["object"], chunk["model"]) for chunk in chunks} == {
        (backend.requests[0].request_id, "chat.completion.chunk", "tiny")
    }
    assert all("usage" not in chunk for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert all(choice["delta"].keys() == {"content"} for choice in choices[1:-1])
    assert "".join(choice["delta"]["content"] for choice in choices[1:-1]) == REPLY
    assert choices[-1]["delta"] == {}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]


async def test_stream_with_usage_ends_in_a_chunk_without_choices(client: httpx.AsyncClient) -> None:
    whole = (await client.post(PATH, json=chat())).json()["usage"]
    answer = await client.post(PATH, json=chat(stream=True, stream_options={"include_usage": True}))
    *chunks, last, done = events(answer)
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["completion_tokens"]
    assert all(chunk["usage"] is None for chunk in chunks)


async def test_stream_escapes_text(client: httpx.AsyncClient, backend: FakeBackend, tokenizer: Tokenizer) -> None:
    text = 'line\nquote" back\\slash \u2028 😀 \x00'
    backend.reply = [*tokenizer.encode(text).tolist(), EOS_ID]
    chunks = events(await client.post(PATH, json=chat(stream=True)))[:-1]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == text


@pytest.mark.parametrize("stream", [False, True])
async def test_second_request_reports_the_shared_prefix(client: httpx.AsyncClient, stream: bool) -> None:
    first = await client.post(PATH, json=chat("one", stream=stream))
    second = await client.post(PATH, json=chat("two", stream=stream))
    fields = dict(part.split("=") for part in second.headers["x-prefixgate-cache"].split("; "))
    assert "reason=never_cached" in first.headers["x-prefixgate-cache"]
    assert fields["reason"] == "diverged"
    assert fields["rules"] == "none"
    assert 0 < int(fields["cached"]) < int(fields["prompt"])
    if not stream:
        usage = second.json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == int(fields["cached"])
        assert usage["prompt_tokens"] == int(fields["prompt"])


async def test_prompts_that_mean_the_same_hit_and_name_the_rules(
    client: httpx.AsyncClient, backend: FakeBackend
) -> None:
    await client.post(PATH, json=chat())
    twin = {"role": "system", "content": [{"type": "text", "text": f"\ufeff{SYSTEM['content']}\r\n"}]}
    answer = await client.post(PATH, json=chat() | {"messages": [twin, {"role": "user", "content": "hi"}]})
    report = answer.headers["x-prefixgate-cache"]
    assert "reason=hit; rules=single_part_to_string,drop_leading_bom,trim_end_of_system" in report
    assert backend.requests[0].token_ids.tolist() == backend.requests[1].token_ids.tolist()
    assert backend.requests[0].block_hashes == backend.requests[1].block_hashes


async def test_rejected_prompt_of_the_engine_is_the_clients_fault_where_it_names_a_field(
    client: httpx.AsyncClient, backend: FakeBackend
) -> None:
    backend.reject = RequestRejectedError("larger than the pool", param="max_tokens")
    answer = await client.post(PATH, json=chat(stream=True))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    backend.reject = RequestRejectedError("not finite")
    answer = await client.post(PATH, json=chat(stream=True))
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
    assert len(answer.headers.get_list("x-request-id")) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_backend_that_is_down_is_503_with_retry_after(
    client: httpx.AsyncClient, backend: FakeBackend, stream: bool
) -> None:
    backend.is_up = False
    answer = await client.post(PATH, json=chat(stream=stream))
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "3"
    assert answer.json()["error"]["code"] == "engine_unavailable"


async def test_engine_that_dies_before_an_answer_in_one_piece_is_503(
    client: httpx.AsyncClient, backend: FakeBackend
) -> None:
    backend.fail_after = 3
    answer = await client.post(PATH, json=chat())
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert answer.json()["error"]["code"] == "engine_failed"


async def test_engine_that_dies_while_streaming_is_an_error_event_and_the_end(
    client: httpx.AsyncClient, backend: FakeBackend
) -> None:
    backend.fail_after = 3
    answer = await client.post(PATH, json=chat(stream=True))
    *chunks, last = events(answer)
    assert answer.status_code == 200
    assert len(chunks) > 1
    assert last["error"]["code"] == "engine_failed"
    assert "[DONE]" not in answer.text


@pytest.mark.parametrize("stream", [False, True])
async def test_unforeseen_error_tells_nothing(
    client: httpx.AsyncClient, backend: FakeBackend, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    backend.batch_size = 0  # the fake fails in its own loop, after admission
    answer = await client.post(PATH, json=chat(stream=stream), headers={"x-request-id": "abc"})
    error = events(answer)[-1]["error"] if stream else answer.json()["error"]
    assert answer.status_code == (200 if stream else 500)
    assert error["code"] == "internal_error"
    assert answer.headers.get("connection") == (None if stream else "close")
    assert "range()" not in error["message"]
    assert answer.headers.get_list("x-request-id") == ["abc"]


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_string_cuts_the_answer_and_aborts_the_generation(
    client: httpx.AsyncClient, backend: FakeBackend, stream: bool
) -> None:
    answer = await client.post(PATH, json=chat(stream=stream, stop=["lazy", "over t"]))
    if stream:
        choices = [chunk["choices"][0] for chunk in events(answer)[:-1]]
        text, reason = "".join(choice["delta"].get("content", "") for choice in choices), choices[-1]["finish_reason"]
    else:
        choice = answer.json()["choices"][0]
        text, reason = choice["message"]["content"], choice["finish_reason"]
    assert (text, reason) == ("hello world, ", "stop")
    assert backend.aborted == [backend.requests[0].request_id]


async def test_answer_that_ends_by_length_gives_back_what_was_held(
    client: httpx.AsyncClient, backend: FakeBackend, tokenizer: Tokenizer
) -> None:
    backend.ends, backend.reply = False, tokenizer.encode("so EN").tolist()
    choice = (await client.post(PATH, json=chat(stop="END"))).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("so EN", "length")


async def test_end_token_that_is_an_ordinary_one_leaves_no_text(
    client: httpx.AsyncClient, backend: FakeBackend, tokenizer: Tokenizer
) -> None:
    backend.reply = tokenizer.encode("yes!").tolist()
    choice = (await client.post(PATH, json=chat())).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("yes", "stop")


async def test_answer_cut_in_a_character_ends_before_it(
    client: httpx.AsyncClient, backend: FakeBackend, tokenizer: Tokenizer
) -> None:
    backend.ends, backend.reply = False, tokenizer.encode("so 😀").tolist()[:-1]
    choice = (await client.post(PATH, json=chat())).json()["choices"][0]
    assert choice["message"]["content"] == "so "


async def test_sampling_reaches_the_engine_complete(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": -1, "ignore_eos": True, "max_completion_tokens": 9}
    await client.post(PATH, json=chat(max_tokens=3, **fields))
    sampling = backend.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert (sampling.seed, sampling.ignore_eos, sampling.max_tokens) == (2**63 - 1, True, 9)


async def test_omitted_max_tokens_is_the_room_left(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    await client.post(PATH, json=chat())
    request = backend.requests[0]
    assert request.sampling.max_tokens == backend.max_model_len - len(request.token_ids)
    assert request.sampling.temperature == 1.0


async def test_top_p_of_zero_is_greedy(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    await client.post(PATH, json=chat(top_p=0))
    assert (backend.requests[0].sampling.temperature, backend.requests[0].sampling.top_p) == (0.0, 1.0)


async def test_prompt_and_answer_that_just_fit_are_taken(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    await client.post(PATH, json=chat())
    num_prompt_tokens = len(backend.requests[0].token_ids)
    assert (await client.post(PATH, json=chat(max_tokens=512 - num_prompt_tokens))).status_code == 200
    assert (await client.post(PATH, json=chat(max_tokens=513 - num_prompt_tokens))).status_code == 400
    backend.max_model_len = num_prompt_tokens + 1
    assert (await client.post(PATH, json=chat())).status_code == 200
    backend.max_model_len = num_prompt_tokens
    assert (await client.post(PATH, json=chat())).json()["error"]["param"] == "messages"


async def test_tools_reach_a_template_that_renders_them(backend: FakeBackend, tmp_path) -> None:
    files = write_model(tmp_path, template=TOOL_TEMPLATE)
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    async with open_client(backend, files) as client:
        answer = await client.post(PATH, json=chat(tools=[tool]))
    assert answer.status_code == 200
    assert '"weather"' in Tokenizer(files.tokenizer_file).decode(backend.requests[0].token_ids.tolist())


async def test_template_that_refuses_is_400(backend: FakeBackend, tmp_path) -> None:
    files = write_model(tmp_path, template="{{ raise_exception('roles must alternate') }}")
    async with open_client(backend, files) as client:
        error = (await client.post(PATH, json=chat())).json()["error"]
    assert error["param"] == "messages"
    assert "roles must alternate" in error["message"]


async def test_template_that_prints_nothing_is_400(backend: FakeBackend, tmp_path) -> None:
    async with open_client(backend, write_model(tmp_path, template="{# nothing #}")) as client:
        assert (await client.post(PATH, json=chat())).json()["error"]["param"] == "messages"


async def test_long_prompt_takes_the_way_through_a_thread(
    client: httpx.AsyncClient, backend: FakeBackend, tokenizer: Tokenizer
) -> None:
    backend.max_model_len = 100_000
    text = "the lazy dog " * 3000
    assert (await client.post(PATH, json=chat(text, max_tokens=5))).status_code == 200
    assert text in tokenizer.decode(backend.requests[0].token_ids.tolist())


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("abc-1.2:3_x", True),
        ("a b", False),
        ("x" * 129, False),
        ("é", False),
        ("", False),
        ("..", False),
        ("export", False),
    ],
)
async def test_request_id_comes_back_where_it_is_harmless(client: httpx.AsyncClient, given: str, kept: bool) -> None:
    for path in ("/health", "/nowhere"):
        answer = await client.get(path, headers={"x-request-id": given.encode()})
        assert (answer.headers["x-request-id"] == given) is kept
        assert answer.headers["x-request-id"]


async def test_headers_come_at_admission_and_pings_while_there_is_no_token(
    backend: FakeBackend, model_files: ModelFiles
) -> None:
    backend.delay_seconds, backend.reply = 0.15, backend.reply[-1:]
    app = create_app(Settings(), backend, model_files, ping_seconds=0.03)
    async with (
        running(app) as port,
        httpx.AsyncClient() as client,
        client.stream("POST", f"http://127.0.0.1:{port}{PATH}", json=chat(stream=True)) as answer,
    ):
        assert answer.headers["x-prefixgate-cache"].startswith("cached=0; prompt=")
        assert backend.live, "the headers came only with the end"
        text = (await answer.aread()).decode()
    assert text.startswith(": ping\n\n: ping\n\n")
    assert text.endswith("data: [DONE]\n\n")


async def test_no_ping_where_tokens_flow(backend: FakeBackend, model_files: ModelFiles) -> None:
    backend.delay_seconds, backend.reply = 0.02, [*[50] * 40, EOS_ID]
    app = create_app(Settings(), backend, model_files, ping_seconds=0.6)
    async with running(app) as port, httpx.AsyncClient() as client:
        answer = await client.post(f"http://127.0.0.1:{port}{PATH}", json=chat(stream=True))
    assert ": ping" not in answer.text


async def test_requests_at_once_each_get_their_own_answer(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    answers = await asyncio.gather(*(client.post(PATH, json=chat(str(number))) for number in range(20)))
    assert len({answer.json()["id"] for answer in answers}) == 20
    assert backend.live == set()
    assert backend.aborted == []
