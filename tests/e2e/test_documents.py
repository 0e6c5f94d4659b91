"""A registered document on the real model: named by two tenants, computed once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.support.server import Server

pytestmark = [pytest.mark.model, pytest.mark.slow]

MODEL = "smollm2-135m-instruct"
DOCUMENT = "Opening hours of the harbour\n" + "\n".join(
    f"Pier {number} opens at {5 + number} in the morning and is closed on {day}s."
    for number, day in enumerate(("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"), start=1)
)
QUESTION = "On which day is pier 2 closed?"


@pytest.fixture
def server() -> Iterator[Server]:
    """One of its own: where there are keys, other tests' clients without one are refused."""
    with Server() as running:
        yield running


def test_two_tenants_read_one_document_and_it_is_computed_once(server: Server) -> None:
    with httpx.Client(
        base_url=f"{server.url}/admin/v1", headers={"authorization": f"Bearer {server.admin_key}"}
    ) as admin:
        body = {"name": "harbour", "text": DOCUMENT, "scope": "public", "retention": {"pin": True}}
        made = admin.post("/prompts", json=body, timeout=60)
        assert made.status_code == 201, made.text
        keys = []
        for tenant in ("reader", "other-reader"):
            assert admin.post("/tenants", json={"name": tenant}).status_code == 201
            keys.append(str(admin.post("/keys", json={"tenant": tenant}).json()["key"]))
    num_tokens, num_blocks = (made.json()["versions"][0][name] for name in ("num_tokens", "num_blocks"))
    blocks: list[Any] = [
        {"type": "document", "source": {"type": "file", "file_id": "harbour"}},
        {"type": "text", "text": QUESTION},
    ]
    with anthropic.Anthropic(base_url=server.url, api_key=keys[0], max_retries=0) as client:
        message = client.messages.create(
            model=MODEL, max_tokens=24, extra_body={"temperature": 0}, messages=[{"role": "user", "content": blocks}]
        )
    num_shared = message.usage.cache_read_input_tokens
    assert num_shared is not None
    assert num_tokens - num_tokens // num_blocks <= num_shared <= num_tokens, "it was computed when it was pinned"
    parts: list[Any] = [{"type": "file", "file": {"file_id": "harbour"}}, {"type": "text", "text": QUESTION}]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=keys[1], max_retries=0) as client:
        answer = client.chat.completions.create(
            model=MODEL, max_tokens=24, temperature=0, messages=[{"role": "user", "content": parts}]
        )
    usage = answer.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == num_shared
    (said,) = message.content
    assert said.type == "text"
    assert said.text == answer.choices[0].message.content
