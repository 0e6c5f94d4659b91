"""The second turn of a chat on the real model: the cache holds the tokens that were sampled, not those of their text."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support.server import Server

pytestmark = pytest.mark.model

BLOCK_SIZE = 32
NUM_CHATS = 8
SYSTEM = "You are a storyteller. " + "Invent people, places and odd words nobody has heard before. " * 4


def ask(server: Server, seed: int, *later: dict[str, str], **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Tell me story number {seed}."}]
    body = {"model": "smollm2-135m-instruct", "messages": [*messages, *later], "seed": seed, "temperature": 1, **fields}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def set_mode(server: Server, mode: str) -> None:
    headers = {"authorization": f"Bearer {server.admin_key}"}
    url = f"{server.url}/admin/v1/rules/echo_repair"
    httpx.put(url, json={"mode": mode}, headers=headers, timeout=30).raise_for_status()


def test_second_turn_finds_the_first_prompt_and_the_answer_in_the_cache(server: Server) -> None:
    def first_turn(seed: int) -> dict[str, Any]:
        return ask(server, seed, max_tokens=90)

    def second_turn(chat: tuple[int, dict[str, Any]]) -> int:
        seed, first = chat
        said = first["choices"][0]["message"]["content"].rstrip()
        echo = {"role": "assistant", "content": said}
        second = ask(server, seed, echo, {"role": "user", "content": "Go on."}, max_tokens=1)
        return int(second["usage"]["prompt_tokens_details"]["cached_tokens"])

    with ThreadPoolExecutor(NUM_CHATS) as pool:
        chats = list(enumerate(pool.map(first_turn, range(NUM_CHATS))))
        set_mode(server, "off")
        try:
            without = list(pool.map(second_turn, chats))
        finally:
            set_mode(server, "on")
        with_repair = list(pool.map(second_turn, chats))
    usages = [first["usage"] for _, first in chats]
    # The last token was sampled and never computed; of the rest, whole blocks are found.
    computed = [usage["prompt_tokens"] + usage["completion_tokens"] - 1 for usage in usages]
    whole = [num_tokens // BLOCK_SIZE * BLOCK_SIZE for num_tokens in computed]
    assert all(cached >= wanted for cached, wanted in zip(with_repair, whole, strict=True)), (with_repair, computed)
    assert all(cached >= other for cached, other in zip(with_repair, without, strict=True)), (with_repair, without)
    assert sum(without) < sum(with_repair), "no answer was written in other tokens than those of its text"
