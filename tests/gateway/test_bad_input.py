"""Every way to send a wrong chat, each with the status, the code and the field that the answer must name."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from gateway.app import create_app
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from tests.gateway.conftest import open_client
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.server import running, until

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
LONG = "hello " * 600
CODE = "rate_limit_exceeded"
KINDS = {400: "invalid_request_error", 429: "rate_limit_error"}


def chat(**fields: object) -> dict[str, object]:
    return {"model": "tiny", "messages": [USER], **fields}


def says(message: object) -> dict[str, object]:
    return chat(messages=[message])


def refuses(role: str, refusal: object) -> dict[str, object]:
    return says({"role": role, "content": [{"type": "refusal", "refusal": refusal}]})


def calls(arguments: str) -> dict[str, object]:
    return {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": arguments}}]}


def function(**fields: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": "f", **fields}}


def nested(depth: int) -> object:
    return [nested(depth - 1)] if depth else []


BODIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "not-json": (b"{model: tiny}", "not valid JSON"),
    "not-utf8": (b'{"model": "t\xffny"}', "not valid JSON in UTF-8"),
    "utf16": (json.dumps(chat()).encode("utf-16"), "not valid JSON"),
    "cut-off": (json.dumps(chat()).encode()[:-2], "not valid JSON"),
    "array": (b"[1]", "array"),
    "string": (b'"hi"', "string"),
    "number": (b"7", "number"),
    "null": (b"null", "null"),
    "lone-surrogate": (b'{"model": "\\ud800"}', "not valid JSON"),
    "nan": (b'{"temperature": NaN}', "not valid JSON"),
    "infinity": (b'{"temperature": 1e999}', "not valid JSON"),
    "deep": (b"[" * 100_000, "not valid JSON"),
    "many-fields": (json.dumps(chat(**{f"x{i}": 1 for i in range(1000)})).encode(), "at most 1000"),
}

FIELDS: dict[str, tuple[dict[str, object], int, str | None, str]] = {
    # id: body, status, code, param
    "no-model": ({"messages": [USER]}, 400, None, "model"),
    "model-number": (chat(model=1), 400, None, "model"),
    "unknown-model": (chat(model="gpt-9"), 404, "model_not_found", "model"),
    "no-messages": ({"model": "tiny"}, 400, None, "messages"),
    "null-messages": (chat(messages=None), 400, None, "messages"),
    "empty-messages": (chat(messages=[]), 400, None, "messages"),
    "messages-object": (chat(messages={}), 400, None, "messages"),
    "message-string": (says("hi"), 400, None, "messages[0]"),
    "too-many-messages": (chat(messages=[USER] * 32_769), 400, None, "messages"),
    "role-missing": (says({"content": "hi"}), 400, None, "messages[0].role"),
    "role-other": (says({"role": "critic", "content": "hi"}), 400, None, "messages[0].role"),
    "role-function": (says({"role": "function", "content": "hi"}), 400, None, "messages[0].role"),
    "role-list": (says({"role": ["user"], "content": "hi"}), 400, None, "messages[0].role"),
    "second-message": (chat(messages=[USER, {"role": "user"}]), 400, None, "messages[1].content"),
    "content-null": (says({"role": "user", "content": None}), 400, None, "messages[0].content"),
    "content-number": (says({"role": "user", "content": 5}), 400, None, "messages[0].content"),
    "content-object": (says({"role": "user", "content": {}}), 400, None, "messages[0].content"),
    "parts-empty": (says({"role": "user", "content": []}), 400, None, "messages[0].content"),
    "part-string": (says({"role": "user", "content": ["hi"]}), 400, None, "messages[0].content[0]"),
    "part-untyped": (says({"role": "user", "content": [{"text": "hi"}]}), 400, None, "messages[0].content[0].type"),
    "part-no-text": (says({"role": "user", "content": [{"type": "text"}]}), 400, None, "messages[0].content[0].text"),
    "image": (
        says({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}),
        400,
        None,
        "messages[0].content[0].type",
    ),
    "audio": (says({"role": "assistant", "audio": {"id": "x"}}), 400, None, "messages[0].audio"),
    "refusal-of-a-user": (refuses("user", "no"), 400, None, "messages[0].content[0].type"),
    "refusal-number": (refuses("assistant", 5), 400, None, "messages[0].content[0].refusal"),
    "name-number": (says({**USER, "name": 5}), 400, None, "messages[0].name"),
    "name-long": (says({**USER, "name": "x" * 300}), 400, None, "messages[0].name"),
    "tool-no-id": (says({"role": "tool", "content": "x"}), 400, None, "messages[0].tool_call_id"),
    "tool-calls-of-user": (
        says({**USER, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": ""}}]}),
        400,
        None,
        "messages[0].tool_calls",
    ),
    "tool-calls-object": (says({"role": "assistant", "tool_calls": {}}), 400, None, "messages[0].tool_calls"),
    "tool-call-arguments": (
        says({"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {}}}]}),
        400,
        None,
        "messages[0].tool_calls[0].function.arguments",
    ),
    "message-deep": (says({**USER, "x": nested(100)}), 400, None, "messages[0]"),
    **{
        f"tool-call-arguments-{depth}-deep": (
            says(calls('{"a":' * depth + "1" + "}" * depth)),
            400,
            None,
            "messages[0].tool_calls[0].function.arguments",
        )
        for depth in (65, 300, 5000)
    },
    "tools": (chat(tools=[{"type": "function", "function": {"name": "f"}}]), 400, None, "tools"),
    "tools-object": (chat(tools={}), 400, None, "tools"),
    "tools-too-many": (chat(tools=[function()] * 1025), 400, None, "tools"),
    "tool-calls-not-rendered": (says(calls("{}")), 400, None, "messages[0].tool_calls"),
    "tool-type": (chat(tools=[{"type": "web"}]), 400, None, "tools[0].type"),
    "tool-name": (chat(tools=[{"type": "function", "function": {}}]), 400, None, "tools[0].function.name"),
    "tool-name-with-a-dot": (chat(tools=[function(name="a.b")]), 400, None, "tools[0].function.name"),
    **{
        f"tool-parameters-{value}-{choice}": (
            chat(tools=[function(parameters=value)], tool_choice=choice),
            400,
            None,
            "tools[0].function.parameters",
        )
        for value in ([1], "x", 5, True)
        for choice in ("auto", "none", "required")
    },
    "tool-deep": (
        chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {"a": nested(200)}}}]),
        400,
        None,
        "tools[0]",
    ),
    "prompt-too-long": (says({"role": "user", "content": LONG}), 400, "context_length_exceeded", "messages"),
    "answer-too-long": (chat(max_tokens=512), 400, "context_length_exceeded", "max_tokens"),
    "completion-too-long": (chat(max_completion_tokens=512), 400, "context_length_exceeded", "max_completion_tokens"),
    "max-tokens-negative": (chat(max_tokens=-1), 400, None, "max_tokens"),
    "max-tokens-zero": (chat(max_tokens=0), 400, None, "max_tokens"),
    "max-tokens-float": (chat(max_tokens=5.5), 400, None, "max_tokens"),
    "max-tokens-string": (chat(max_tokens="5"), 400, None, "max_tokens"),
    "max-tokens-bool": (chat(max_tokens=True), 400, None, "max_tokens"),
    "max-tokens-huge": (chat(max_tokens=2**80), 400, None, "max_tokens"),
    "max-tokens-2-to-40": (chat(max_tokens=2**40), 400, None, "max_tokens"),
    "temperature-low": (chat(temperature=-0.1), 400, None, "temperature"),
    "temperature-high": (chat(temperature=2.1), 400, None, "temperature"),
    "temperature-string": (chat(temperature="hot"), 400, None, "temperature"),
    "temperature-bool": (chat(temperature=True), 400, None, "temperature"),
    "temperature-list": (chat(temperature=[1]), 400, None, "temperature"),
    "top-p-high": (chat(top_p=1.01), 400, None, "top_p"),
    "top-k-low": (chat(top_k=-2), 400, None, "top_k"),
    "top-k-float": (chat(top_k=1.0), 400, None, "top_k"),
    "seed-float": (chat(seed=1.5), 400, None, "seed"),
    "seed-huge": (chat(seed=2**63), 400, None, "seed"),
    "stop-empty": (chat(stop=""), 400, None, "stop"),
    "stop-number": (chat(stop=5), 400, None, "stop"),
    "stop-list-number": (chat(stop=["a", 5]), 400, None, "stop[1]"),
    "stop-list-empty-text": (chat(stop=["a", ""]), 400, None, "stop[1]"),
    "stop-too-many": (chat(stop=["a"] * 17), 400, None, "stop"),
    "stop-long": (chat(stop="x" * 257), 400, None, "stop"),
    "stream-number": (chat(stream=1), 400, None, "stream"),
    "stream-string": (chat(stream="true"), 400, None, "stream"),
    "stream-options-without-stream": (chat(stream_options={"include_usage": True}), 400, None, "stream_options"),
    "stream-options-list": (chat(stream=True, stream_options=[]), 400, None, "stream_options"),
    "include-usage-number": (
        chat(stream=True, stream_options={"include_usage": 1}),
        400,
        None,
        "stream_options.include_usage",
    ),
    "ignore-eos-string": (chat(ignore_eos="yes"), 400, None, "ignore_eos"),
    "min-p-negative": (chat(min_p=-0.1), 400, None, "min_p"),
    "min-p-high": (chat(min_p=1.1), 400, None, "min_p"),
    "repetition-penalty-zero": (chat(repetition_penalty=0), 400, None, "repetition_penalty"),
    "repetition-penalty-high": (chat(repetition_penalty=11), 400, None, "repetition_penalty"),
    "repetition-penalty-string": (chat(repetition_penalty="1"), 400, None, "repetition_penalty"),
    "presence-penalty-high": (chat(presence_penalty=2.1), 400, None, "presence_penalty"),
    "presence-penalty-bool": (chat(presence_penalty=True), 400, None, "presence_penalty"),
    "frequency-penalty-low": (chat(frequency_penalty=-2.1), 400, None, "frequency_penalty"),
    "logit-bias-list": (chat(logit_bias=[5]), 400, None, "logit_bias"),
    "logit-bias-word": (chat(logit_bias={"hello": 1}), 400, None, "logit_bias"),
    "logit-bias-negative-id": (chat(logit_bias={"-5": 1}), 400, None, "logit_bias"),
    "logit-bias-huge-id": (chat(logit_bias={"9" * 400: 1}), 400, None, "logit_bias"),
    "logit-bias-other-digits": (chat(logit_bias={"٣": 1}), 400, None, "logit_bias"),
    "logit-bias-high": (chat(logit_bias={"4": 1, "5": 100.5}), 400, None, "logit_bias.5"),
    "logit-bias-string": (chat(logit_bias={"5": "1"}), 400, None, "logit_bias.5"),
    "logit-bias-many": (chat(logit_bias={str(token): 1 for token in range(301)}), 400, None, "logit_bias"),
    "logprobs-number": (chat(logprobs=5), 400, None, "logprobs"),
    "top-logprobs-high": (chat(logprobs=True, top_logprobs=21), 400, None, "top_logprobs"),
    "top-logprobs-negative": (chat(logprobs=True, top_logprobs=-1), 400, None, "top_logprobs"),
    "top-logprobs-bool": (chat(logprobs=True, top_logprobs=True), 400, None, "top_logprobs"),
    "top-logprobs-alone": (chat(top_logprobs=3), 400, None, "top_logprobs"),
    "top-logprobs-without": (chat(logprobs=False, top_logprobs=3), 400, None, "top_logprobs"),
    "tool-choice-without-tools": (chat(tool_choice="required"), 400, None, "tool_choice"),
    "tool-choice-word": (chat(tool_choice="any"), 400, None, "tool_choice"),
    "tool-choice-number": (chat(tool_choice=1), 400, None, "tool_choice"),
    "tool-choice-type": (chat(tool_choice={"type": "allowed_tools"}), 400, None, "tool_choice.type"),
    "tool-choice-function": (chat(tool_choice={"type": "function"}), 400, None, "tool_choice.function"),
    "tool-choice-name": (
        chat(tool_choice={"type": "function", "function": {}}),
        400,
        None,
        "tool_choice.function.name",
    ),
    "parallel-tool-calls": (chat(parallel_tool_calls="no"), 400, None, "parallel_tool_calls"),
}


@pytest.mark.parametrize(("body", "words"), BODIES.values(), ids=BODIES)
async def test_bad_body_is_400(client: httpx.AsyncClient, body: bytes, words: str) -> None:
    answer = await client.post(PATH, content=body)
    assert_error(answer, 400, code=None, param=None)
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize(("body", "status", "code", "param"), FIELDS.values(), ids=FIELDS)
async def test_bad_field_is_named(
    client: httpx.AsyncClient, backend: FakeBackend, body: dict[str, object], status: int, code: str | None, param: str
) -> None:
    answer = await client.post(PATH, json=body)
    assert_error(answer, status, code=code, param=param)
    assert answer.json()["error"]["message"].startswith(f"{param}: ")
    assert backend.requests == []


@pytest.mark.parametrize("field", ["max_tokens", "temperature", "top_p", "stop", "messages"])
async def test_long_value_is_not_printed_whole(client: httpx.AsyncClient, field: str) -> None:
    answer = await client.post(PATH, json=chat(**{field: "x" * 100_000}))
    assert answer.status_code == 400
    assert len(answer.content) < 500


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0, "top_p": 1, "top_k": 0, "seed": -5, "n": 1, "max_tokens": 1},
        {"temperature": 2.0, "top_p": 0, "top_k": -1, "seed": 2**63 - 1, "logprobs": False},
        {"max_tokens": None, "stop": None, "tools": None, "stream": None, "n": None, "temperature": None},
        {"stop": [], "tools": [], "response_format": {"type": "text"}, "presence_penalty": 0.0},
        {"user": "me", "metadata": {"a": "b"}, "anything": [1, 2]},
        {"min_p": 0, "repetition_penalty": 0.1, "presence_penalty": -2, "frequency_penalty": 2.0, "top_logprobs": 0},
        {"min_p": 1.0, "repetition_penalty": 10, "logit_bias": {"5": -100, "0": 100.0}, "logprobs": None},
        {"logit_bias": {str(token): 1 for token in range(300)}, "logprobs": True, "top_logprobs": 20},
        {"stream": False, "frequency_penalty": 0, "logit_bias": {}, "tool_choice": "auto"},
    ],
)
async def test_values_at_the_bounds_and_nulls_are_taken(client: httpx.AsyncClient, fields: dict[str, object]) -> None:
    assert (await client.post(PATH, json=chat(**fields))).status_code == 200


LIMITS: dict[str, tuple[dict[str, int], int, str | None, str | None, str]] = {
    # id: options, status, code, param, beginning of the message to the second of two chats
    "requests-per-minute": ({"requests_per_minute": 1}, 429, CODE, None, "requests_per_minute: this tenant may use 1 "),
    "requests-per-day": (
        {"requests_per_day": 1},
        429,
        CODE,
        None,
        "requests_per_day: this tenant may use 1 requests a day",
    ),
    "tokens-per-minute": (
        {"tokens_per_minute": 60},
        429,
        CODE,
        None,
        "tokens_per_minute: this tenant may use 60 tokens a m",
    ),
    "tokens-per-day": (
        {"tokens_per_day": 60},
        429,
        CODE,
        None,
        "tokens_per_day: this tenant may use 60 tokens a day; ",
    ),
    "concurrency": ({"concurrency": 1}, 429, CODE, None, "concurrency: this tenant may have 1 requests at the same "),
    "tokens-never": (
        {"tokens_per_day": 50},
        400,
        None,
        "max_tokens",
        "max_tokens: prompt and answer together may take ",
    ),
}


@pytest.mark.parametrize(("limits", "status", "code", "param", "words"), LIMITS.values(), ids=LIMITS)
async def test_request_beyond_a_limit_is_refused_before_the_engine(
    backend: FakeBackend,
    model_files: ModelFiles,
    limits: dict[str, int],
    status: int,
    code: str | None,
    param: str | None,
    words: str,
) -> None:
    backend.admit = asyncio.Event()
    options = {f"limit_{name}": amount for name, amount in limits.items()}
    async with open_client(backend, model_files, **options) as client:
        first = asyncio.ensure_future(client.post(PATH, json=chat(max_tokens=40)))
        await until(lambda: backend.live or first.done())
        answer = await client.post(PATH, json=chat(max_tokens=40))
        backend.admit.set()
        assert (await first).status_code == (200 if status == 429 else 400)
    assert_error(answer, status, code=code, param=param, kind=KINDS[status])
    assert answer.json()["error"]["message"].startswith(words)
    assert ("retry-after" in answer.headers) == (status == 429)
    assert len(backend.requests) == (status == 429)


async def test_of_duplicate_keys_the_last_one_counts(client: httpx.AsyncClient) -> None:
    body = json.dumps(chat())[:-1] + ', "model": "other"}'
    assert_error(await client.post(PATH, content=body), 404, code="model_not_found", param="model")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        ({}, "an object with 0 entries"),
        ([1], "an array with 1 entry"),
        (7, "7"),
        ("hi", "'hi'"),
    ],
)
async def test_value_is_named_in_the_words_of_json(client: httpx.AsyncClient, value: object, words: str) -> None:
    answer = await client.post(PATH, json=says({"role": value, "content": "hi"}))
    assert answer.json()["error"]["message"].startswith(f"messages[0].role: got {words}, wanted one of ")


async def test_body_over_the_limit_is_413(client: httpx.AsyncClient) -> None:
    answer = await client.post(PATH, content=b" " * 10_000_001)
    assert_error(answer, 413, code="request_too_large", param=None)


async def test_body_at_the_limit_is_read(client: httpx.AsyncClient) -> None:
    body = json.dumps(chat()).encode().ljust(10_000_000)
    assert (await client.post(PATH, content=body)).status_code == 200


async def test_announced_body_over_the_limit_is_413_before_any_of_it_is_read(
    backend: FakeBackend, model_files: ModelFiles
) -> None:
    async with running(create_app(Settings(), backend, model_files)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 10000001\r\n\r\n".encode())
        async with asyncio.timeout(3):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413")
        writer.close()


async def test_chunked_body_over_the_limit_is_413_before_it_is_all_read(
    backend: FakeBackend, model_files: ModelFiles
) -> None:
    async with running(create_app(Settings(), backend, model_files)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"POST {PATH} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        for _ in range(11):  # and never an end
            writer.write(b"f4240\r\n" + b" " * 1_000_000 + b"\r\n")
            await writer.drain()
        async with asyncio.timeout(3):
            head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 413")
        assert b"connection: close" in head
        writer.close()


@pytest.mark.parametrize("text", ["hello " * 20_000, "<|stop|>" * 20_000, "a" * 100_000])
async def test_text_far_over_the_limit_is_refused_by_its_characters(client: httpx.AsyncClient, text: str) -> None:
    answer = await client.post(PATH, json=chat(messages=[{"role": "user", "content": text}]))
    assert_error(answer, 400, code="context_length_exceeded", param="messages")
    assert f"a prompt of {len(text) + 40} characters" in answer.json()["error"]["message"]


def assert_error(
    answer: httpx.Response, status: int, *, code: str | None, param: str | None, kind: str = KINDS[400]
) -> None:
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == kind
    assert error["message"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
