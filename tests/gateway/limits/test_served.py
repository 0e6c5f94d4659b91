"""Limits as clients see them."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from gateway.app import create_app
from gateway.backends.base import BackendOverloadedError, RequestRejectedError
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from tests.gateway.conftest import open_client
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.server import running, until
from tests.gateway.test_chat import PATH, chat
from tests.gateway.test_disconnect import send_chat
from tests.gateway.test_metrics import growth, scrape


def limit_headers(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("x-ratelimit")}


async def test_without_limits_no_header_speaks_of_them(client: httpx.AsyncClient) -> None:
    answer = await client.post(PATH, json=chat())
    assert answer.status_code == 200
    assert limit_headers(answer) == {}


async def test_refusal_is_429_and_says_when_to_come_back(backend: FakeBackend, model_files: ModelFiles) -> None:
    async with open_client(backend, model_files, limit_requests_per_minute=2) as client:
        before = await scrape(client)
        answers = [await client.post(PATH, json=chat()) for _ in range(3)]
        grown = growth(before, await scrape(client))
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["1", "0", "0"]
    error = answers[2].json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert error["message"].startswith("requests_per_minute: this tenant may use 2 requests a minute; 0 are left")
    assert 1 <= int(answers[2].headers["retry-after"]) <= 60
    assert set(limit_headers(answers[2])) == {
        f"x-ratelimit-{name}-requests" for name in ("limit", "remaining", "reset")
    }
    assert grown["prefixgate_limited_requests_total[requests_per_minute]"] == 1
    assert grown[f"prefixgate_requests_total[{PATH}][429]"] == 1
    assert len(backend.requests) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_are_settled_to_what_the_usage_says(
    backend: FakeBackend, model_files: ModelFiles, stream: bool
) -> None:
    async with open_client(backend, model_files, limit_tokens_per_minute=600) as client:
        spent = 0
        for _ in range(3):
            answer = await client.post(PATH, json=chat(stream=stream, max_tokens=100))
            num_prompt_tokens = len(backend.requests[-1].token_ids)
            reserved = num_prompt_tokens + 100
            used = num_prompt_tokens + len(backend.reply)
            held = spent + (reserved if stream else used)  # the head of a stream goes out before it is known
            assert int(answer.headers["x-ratelimit-remaining-tokens"]) == 600 - held
            assert answer.headers["x-ratelimit-limit-tokens"] == "600"
            spent += used


async def test_answer_that_never_fits_is_refused_for_good(backend: FakeBackend, model_files: ModelFiles) -> None:
    async with open_client(backend, model_files, limit_tokens_per_minute=100) as client:
        answer = await client.post(PATH, json=chat(max_tokens=300))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")
        assert (await client.post(PATH, json=chat(max_tokens=20))).status_code == 200
    assert len(backend.requests) == 1


async def test_capacity_stays_503_and_costs_no_tokens(backend: FakeBackend, model_files: ModelFiles) -> None:
    async with open_client(backend, model_files, limit_tokens_per_day=200, limit_concurrency=1) as client:
        for error, status in (
            (BackendOverloadedError("full"), 503),
            (RequestRejectedError("no", param="max_tokens"), 400),
            (RuntimeError(), 500),
        ):
            backend.reject = error
            answer = await client.post(PATH, json=chat(max_tokens=100))
            assert answer.status_code == status
        backend.reject = None
        answer = await client.post(PATH, json=chat(max_tokens=100))
        assert answer.status_code == 200
        used = len(backend.requests[-1].token_ids) + len(backend.reply)
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) == 200 - used


@pytest.mark.parametrize("stream", [False, True])
async def test_failure_midway_costs_what_was_computed(
    backend: FakeBackend, model_files: ModelFiles, stream: bool
) -> None:
    backend.fail_after = 3
    async with open_client(backend, model_files, limit_tokens_per_day=400, limit_concurrency=1) as client:
        await client.post(PATH, json=chat(max_tokens=100, stream=stream))
        backend.fail_after = None
        answer = await client.post(PATH, json=chat(max_tokens=100))
    num_prompt_tokens = len(backend.requests[-1].token_ids)
    used = num_prompt_tokens + 3 + num_prompt_tokens + len(backend.reply)
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) == 400 - used


async def test_wrong_body_gives_its_slot_back(backend: FakeBackend, model_files: ModelFiles) -> None:
    async with open_client(backend, model_files, limit_concurrency=1) as client:
        for body in ({}, chat(model="other"), chat(max_tokens=0), chat("hello " * 2000), chat()):
            answer = await client.post(PATH, json=body)
            assert answer.status_code != 429
    assert answer.status_code == 200


async def test_second_request_at_the_same_time_is_refused(backend: FakeBackend, model_files: ModelFiles) -> None:
    backend.admit = asyncio.Event()
    async with open_client(backend, model_files, limit_concurrency=1) as client:
        first = asyncio.ensure_future(client.post(PATH, json=chat()))
        await until(lambda: backend.live)
        refused = await client.post(PATH, json=chat())
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "this tenant may have 1 requests at the same time" in refused.json()["error"]["message"]
        backend.admit.set()
        assert (await first).status_code == 200
        assert (await client.post(PATH, json=chat())).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("waits", [False, True])
async def test_disconnect_gives_slot_and_tokens_back(
    backend: FakeBackend, model_files: ModelFiles, stream: bool, waits: bool
) -> None:
    settings = Settings(limit_concurrency=1, limit_tokens_per_day=10_000)
    async with running(create_app(settings, backend, model_files)) as port:
        if waits:
            backend.admit = asyncio.Event()
        else:
            backend.reply, backend.delay_seconds = [50] * 400, 0.01
        reader, writer = await send_chat(port, stream=stream)
        await until(lambda: backend.live)
        if stream and not waits:
            await reader.readuntil(b"finish_reason")
        writer.close()
        await until(lambda: not backend.live)
        backend.admit, backend.delay_seconds = None, 0.0
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:

            async def ask() -> httpx.Response:
                return await client.post(PATH, json=chat(max_tokens=5))

            while (answer := await ask()).status_code == 429:  # until the server's task has ended
                await asyncio.sleep(0.005)
        remaining = int(answer.headers["x-ratelimit-remaining-tokens"])
        own = len(backend.requests[-1].token_ids) + 5
        first = len(backend.requests[0].token_ids)
        if waits:
            assert remaining == 10_000 - own  # nothing was computed
        else:
            assert 10_000 - own - first - 400 < remaining <= 10_000 - own - first


async def test_whoever_has_the_answer_may_ask_again_at_once(backend: FakeBackend, model_files: ModelFiles) -> None:
    app = create_app(Settings(limit_concurrency=1), backend, model_files)
    async with running(app) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        for number in range(30):
            answer = await client.post(PATH, json=chat(stream=number % 2 == 0))
            assert answer.status_code == 200
