"""Chats against any OpenAI-compatible server, so many at a time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import orjson

from benchmarks.loads import Chat, Load
from benchmarks.timings import Figures, RequestTiming, figures

_TIMEOUT = 600


def run_chats(url: str, load: Load, round_number: int) -> Figures:
    """Warm up with one short chat, then run the load.

    Raises: RuntimeError: an answer failed, ended early or broke off.
    """
    try:
        return asyncio.run(_run(url, load, load.chats(round_number)))
    except httpx.HTTPError as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


async def _run(url: str, load: Load, chats: list[Chat]) -> Figures:
    fresh = httpx.Limits(max_keepalive_connections=0)  # a server may close one that waits just as it is used again
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT, limits=fresh) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        await _ask(client, model, Chat("You are brief.", "Say hello."), 8)
        gate = asyncio.Semaphore(load.concurrency)

        async def queued(chat: Chat) -> RequestTiming:
            async with gate:
                return await _ask(client, model, chat, load.max_tokens)

        start = time.perf_counter()
        timings = await asyncio.gather(*(queued(chat) for chat in chats))
        return figures(timings, time.perf_counter() - start)


async def _ask(client: httpx.AsyncClient, model: str, chat: Chat, max_tokens: int) -> RequestTiming:
    body = {
        "model": model,
        "messages": chat.messages,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start = time.perf_counter()
    first, usage, ended = None, dict[str, Any](), False
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"status {answer.status_code}: {(await answer.aread())[:300]!r}")
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                ended = True
            if ended or not line.startswith("data: "):
                continue
            event = orjson.loads(line[6:])
            if "error" in event:
                raise RuntimeError(f"error in the stream: {event['error']}")
            usage = event.get("usage") or usage
            if first is None and any(choice["delta"].get("content") for choice in event.get("choices") or ()):
                first = time.perf_counter()
    total = time.perf_counter() - start
    if not ended or first is None or usage.get("completion_tokens") != max_tokens:
        raise RuntimeError(f"wanted {max_tokens} tokens and an end, got usage {usage}, ended: {ended}")
    return RequestTiming(first - start, total, max_tokens, usage["prompt_tokens"])
