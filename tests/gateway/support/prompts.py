"""Registering prompts and chatting with them, for tests."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from tests.gateway.support.stored_gateway import Gateway

SUPPORT = "You work for the shop. Be kind, be brief. Never promise a refund before a person has looked at it."
PAST = "2020-01-01T00:00:00Z"


async def register(gateway: Gateway, name: str = "support", **fields: Any) -> dict[str, Any]:
    body = {"name": name, **({"text": SUPPORT} if "messages" not in fields else {}), **fields}
    answer = await gateway.admin.post("/prompts", json=body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def chat(
    gateway: Gateway, system: str | None = SUPPORT, key: str | None = None, user: str = "hi", **fields: Any
) -> httpx.Response:
    messages = [{"role": "user", "content": user}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return await gateway.chat(key, messages=messages, **fields)


def cached(answer: httpx.Response) -> int:
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def is_warm(entry: dict[str, Any]) -> bool:
    return bool(entry["warm"]["status"] == "warm")


async def wait_warm(gateway: Gateway, prompt: str) -> dict[str, Any]:
    for _ in range(200):
        shown = (await gateway.admin.get(f"/prompts/{prompt}")).json()
        if is_warm(shown):
            return dict(shown)
        await asyncio.sleep(0.02)
    raise AssertionError(shown)
