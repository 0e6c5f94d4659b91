"""Summaries by the engine itself, through the whole gateway: what the engine is asked, and who pays for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.backends.base import BackendOverloadedError, GenerationRequest
from gateway.tokenizer import Tokenizer
from tests.gateway.support.fake_backend import BLOCK_SIZE
from tests.gateway.support.server import until
from tests.gateway.support.stored_gateway import Gateway, OpenGateway
from tests.gateway.support.tiny_model import EOS_ID

PARAMS = {"summary": "model", "keep_units": 2, "high": 0.6, "low": 0.4}
SAID = "hello to the world, says the quick brown fox."
"""By the engine, always."""
LINE = "the quick brown fox jumps over the lazy dog "
Body = dict[str, Any]

pytestmark = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


def is_summary(request: GenerationRequest) -> bool:
    return request.request_id.endswith("-summary")


class Chatting:
    """A client that sends its whole chat each time."""

    def __init__(self, gateway: Gateway, key: str | None = None) -> None:
        self._gateway, self._key = gateway, key
        self.messages: list[Body] = [{"role": "system", "content": "you are a helpful assistant"}]

    async def say(self) -> httpx.Response:
        text = f"{len(self.messages)} " + LINE * 6
        self.messages.append({"role": "user", "content": text})
        answer = await self._gateway.chat(self._key, messages=self.messages, max_tokens=40)
        assert answer.status_code == 200, answer.text
        self.messages.append(answer.json()["choices"][0]["message"])
        return answer

    async def until_cut(self) -> httpx.Response:
        """Go on until the engine is asked for a summary."""
        for _ in range(30):
            answer = await self.say()
            if any(map(is_summary, self._gateway.backend.requests)):
                return answer
        raise AssertionError("never cut")


def said_ids(tokenizer: Tokenizer) -> list[int]:
    """The engine's own tokens, which are others than those of the text."""
    return [token for text in (*"hello", SAID[5:]) for token in tokenizer.encode(text).tolist()]


@contextlib.asynccontextmanager
async def opened(open_gateway: OpenGateway, tokenizer: Tokenizer) -> AsyncIterator[Gateway]:
    """A gateway whose engine writes the summaries."""
    async with open_gateway() as gateway:
        gateway.backend.max_model_len = 1500
        gateway.backend.reply = [*said_ids(tokenizer), EOS_ID]
        answer = await gateway.admin.put("/rules/context_policy", json={"mode": "on", "params": PARAMS})
        assert answer.status_code == 200, answer.text
        yield gateway


@pytest.fixture
async def gateway(open_gateway: OpenGateway, tokenizer: Tokenizer) -> AsyncIterator[Gateway]:
    async with opened(open_gateway, tokenizer) as gateway:
        yield gateway


async def counted(gateway: Gateway) -> dict[str, float]:
    text = (await gateway.admin.get("http://gateway/metrics")).text
    return {
        sample.name.removeprefix("prefixgate_")
        + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_engine_has_all_of_the_chat_that_it_is_to_summarize(gateway: Gateway, tokenizer: Tokenizer) -> None:
    """The prompt begins with the last one and the answer to it, so no block of these is computed again."""
    await Chatting(gateway).until_cut()
    previous, asking, request = gateway.backend.requests[-3:]
    known = [*previous.token_ids.tolist(), *said_ids(tokenizer)]
    assert is_summary(asking)
    assert asking.token_ids[: len(known)].tolist() == known
    assert asking.block_hashes.startswith(previous.block_hashes)
    assert (asking.scopes[0][0], asking.tenant) == (previous.scopes[0][0], previous.tenant)
    assert asking.sampling.temperature == 0
    assert 0 < asking.sampling.max_tokens < 60
    assert request.request_id == asking.request_id.removesuffix("-summary")
    metrics = await counted(gateway)
    assert metrics["context_summary_tokens_total[prompt]"] == len(asking.token_ids)
    assert metrics["context_summary_tokens_total[cached]"] >= len(previous.token_ids) // BLOCK_SIZE * BLOCK_SIZE
    assert metrics["context_summary_tokens_total[generated]"] == len(gateway.backend.reply)
    assert metrics["prompt_tokens_total"] == sum(len(sent.token_ids) for sent in gateway.backend.requests)
    assert metrics["generated_tokens_total"] == len(gateway.backend.requests) * len(gateway.backend.reply)


async def test_summary_is_sent_from_now_on_and_not_asked_for_again(gateway: Gateway, tokenizer: Tokenizer) -> None:
    chatting, backend = Chatting(gateway), gateway.backend
    await chatting.until_cut()
    cut = backend.requests[-1].token_ids.tolist()
    assert tokenizer.decode(cut).index(SAID) < tokenizer.decode(cut).index("the quick brown fox jumps")
    await chatting.say()
    assert backend.requests[-1].token_ids[: len(cut)].tolist() == cut
    assert sum(map(is_summary, backend.requests)) == 1


async def test_tenant_pays_for_the_summary(gateway: Gateway) -> None:
    key = await limited(gateway, 500_000)
    answer = await Chatting(gateway, key).until_cut()
    used = sum(len(request.token_ids) + len(gateway.backend.reply) for request in gateway.backend.requests)
    assert answer.headers["x-ratelimit-remaining-tokens"] == str(500_000 - used)


async def test_engine_that_has_no_room_for_a_summary_answers_all_the_same(gateway: Gateway) -> None:
    chatting, backend = Chatting(gateway), gateway.backend
    generate = backend.generate

    async def refuse(request: GenerationRequest) -> Any:
        generation = await generate(request)
        if is_summary(request):
            generation.abort()
            raise BackendOverloadedError("too little memory")
        return generation

    backend.generate = refuse  # type: ignore[method-assign,assignment]
    await chatting.until_cut()
    await chatting.say()
    metrics = await counted(gateway)
    assert metrics["context_summary_fallbacks_total[failed]"] == 1
    assert metrics["context_summary_fallbacks_total[timed_out]"] == 0
    assert sum(map(is_summary, backend.requests)) == 1


async def test_whoever_leaves_while_a_summary_is_written_aborts_it(gateway: Gateway) -> None:
    chatting, backend = Chatting(gateway), gateway.backend
    pause = backend.pause

    async def pause_in_summaries() -> None:
        await (asyncio.sleep(60) if is_summary(backend.requests[-1]) else pause())

    backend.pause = pause_in_summaries  # type: ignore[method-assign]
    task = asyncio.create_task(chatting.until_cut())
    await until(lambda: backend.requests and is_summary(backend.requests[-1]))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: not backend.live)
    assert backend.aborted == [backend.requests[-1].request_id]


def long_chat(*, last: str = "and?") -> list[Body]:
    """One that nobody cut before."""
    turns = [
        {"role": role, "content": text}
        for number in range(30)
        for role, text in (("user", f"{number} " + LINE * 6), ("assistant", SAID * 3))
    ]
    return [{"role": "system", "content": "you are a helpful assistant"}, *turns, {"role": "user", "content": last}]


async def limited(gateway: Gateway, tokens_per_day: int) -> str:
    key = await gateway.make_key("acme")
    limits = {"limits": {"tokens_per_day": tokens_per_day}}
    assert (await gateway.admin.patch("/tenants/acme", json=limits)).status_code == 200
    return key


async def remaining(gateway: Gateway, key: str) -> int:
    """Tokens of the day, before this very request."""
    answer = await gateway.chat(key, messages=[{"role": "user", "content": "hi"}], max_tokens=20)
    took = len(gateway.backend.requests[-1].token_ids) + answer.json()["usage"]["completion_tokens"]
    return int(answer.headers["x-ratelimit-remaining-tokens"]) + took


async def test_tenant_without_tokens_for_a_summary_gets_none(gateway: Gateway) -> None:
    answer = await gateway.chat(await limited(gateway, 700), messages=long_chat(), max_tokens=40)
    assert answer.status_code == 200, answer.text
    assert answer.json()["context_management"]["applied_edits"]
    assert not any(map(is_summary, gateway.backend.requests))
    assert (await counted(gateway))["context_summary_fallbacks_total[failed]"] == 1


async def test_summary_of_a_request_that_is_refused_is_paid_for(gateway: Gateway) -> None:
    key = await limited(gateway, 1300)
    assert (await gateway.chat(key, messages=long_chat(), max_tokens=40)).status_code == 429
    (summary,) = gateway.backend.requests
    assert is_summary(summary)
    assert await remaining(gateway, key) == 1300 - len(summary.token_ids) - len(gateway.backend.reply)


async def test_summary_that_nobody_waits_for_any_more_is_paid_for(gateway: Gateway) -> None:
    key, backend = await limited(gateway, 500_000), gateway.backend
    pause = backend.pause

    async def pause_in_summaries() -> None:
        await (asyncio.sleep(60) if is_summary(backend.requests[-1]) else pause())

    backend.pause = pause_in_summaries  # type: ignore[method-assign]
    task = asyncio.create_task(gateway.chat(key, messages=long_chat(), max_tokens=40))
    await until(lambda: backend.requests and is_summary(backend.requests[-1]))
    (summary,) = backend.requests
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: not backend.live)
    assert await remaining(gateway, key) <= 500_000 - len(summary.token_ids)
