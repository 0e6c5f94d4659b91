"""A summary that the real model writes: on what is cached of the chat, and then for good."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.server import Server

pytestmark = pytest.mark.model

BLOCK_SIZE = 32
PARAMS = {"summary": "model", "keep_units": 2, "high": 0.07, "low": 0.04, "summary_share": 0.2}
"""Of a window of 8,192 tokens: cut above about 540, and 60 tokens of a summary."""
FACTS = (
    "We go to Lisbon on 14 May, my sister Clara comes along, and the budget is 1,800 euros.",
    "Mr. Okafor prunes the apple tree in March, and the roses stay where they are.",
    "I begin at Brightwater Labs on 3 June; my boss there is called Ines Moreau.",
    "The oven is broken. The repair costs 240 euros, so we decided to buy a new one.",
)


@pytest.fixture
def summaries(server: Server) -> Iterator[None]:
    """The model writes them, while a test runs."""
    url, headers = f"{server.url}/admin/v1/rules/context_policy", {"authorization": f"Bearer {server.admin_key}"}
    httpx.put(url, json={"mode": "on", "params": PARAMS}, headers=headers, timeout=30).raise_for_status()
    yield
    httpx.put(url, json={"mode": "off"}, headers=headers, timeout=30).raise_for_status()


def summary_tokens(server: Server, kind: str) -> float:
    return server.metrics()[f'prefixgate_context_summary_tokens_total{{type="{kind}"}}']


def whole_blocks(usage: dict[str, Any]) -> int:
    """Of a prompt and its answer; the last token was sampled and never computed."""
    return (int(usage["prompt_tokens"]) + int(usage["completion_tokens"]) - 1) // BLOCK_SIZE * BLOCK_SIZE


@pytest.mark.usefixtures("summaries")
def test_summary_call_and_all_later_turns_hit(server: Server) -> None:
    messages = [{"role": "system", "content": "You are a helpful assistant who answers in one short sentence."}]

    def say(number: int) -> dict[str, Any]:
        text = f"Now for thing {number}. {FACTS[number % 4]} {FACTS[(number + 1) % 4]} What comes next?"
        messages.append({"role": "user", "content": text})
        body = {"model": "smollm2-135m-instruct", "messages": messages, "max_tokens": 8, "temperature": 0}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        messages.append(answer.json()["choices"][0]["message"])
        return dict(answer.json())

    before, number, asked = say(0), 1, summary_tokens(server, "prompt")
    cached = summary_tokens(server, "cached")
    while True:
        cut = say(number)
        if summary_tokens(server, "prompt") > asked:
            break
        before, number = cut, number + 1
        assert number < 20, "never cut"
    assert summary_tokens(server, "cached") - cached >= whole_blocks(before["usage"])
    assert summary_tokens(server, "prompt") - asked < before["usage"]["prompt_tokens"] + 300
    edits = {edit["type"]: edit for edit in cut["context_management"]["applied_edits"]}
    assert edits["summarize"]["written_by"] in ("model", "extractive")  # the model is very small
    asked = summary_tokens(server, "prompt")
    later = say(number + 1)
    assert later["usage"]["prompt_tokens_details"]["cached_tokens"] >= whole_blocks(cut["usage"])
    assert summary_tokens(server, "prompt") == asked
