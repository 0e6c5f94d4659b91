"""A dry run sends nothing, and shows the very tokens that a request would be sent with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema
import pytest

from gateway.model_files import ModelFiles
from tests.gateway.conftest import open_client
from tests.gateway.context.test_asked import clearing, used
from tests.gateway.context.test_report import ADMIN, ADMIN_KEY, LINE, MESSAGES, ROUTES, SHORT, body_of
from tests.gateway.support.fake_backend import FakeBackend

ENDPOINTS = {"/v1/chat/completions": "chat.completions", "/v1/messages": "messages", "/v1/responses": "responses"}
SAMPLE_CHARS, NUM_SAMPLES = 256, 32
"""Of `TokenCounter`."""


def between_samples() -> str:
    """A long text of twice the tokens that its samples let expect."""
    text = list((LINE * 200)[:12_000])
    step = (len(text) - SAMPLE_CHARS) / (NUM_SAMPLES - 1)
    for number in range(NUM_SAMPLES - 1):
        start = int(number * step) + SAMPLE_CHARS + 10
        text[start : start + 40] = "§" * 40
    return "".join(text)


DENSE = [{"role": "user", "content": between_samples()}, {"role": "assistant", "content": "ok"}, *SHORT]
"""Of more tokens than is estimated: too many at the first attempt."""
LEAST = {"type": "input_tokens", "value": 1}
POLICY = {"name": "context_policy"}


@pytest.fixture
async def client(backend: FakeBackend, model_files: ModelFiles) -> AsyncIterator[httpx.AsyncClient]:
    backend.max_model_len = 4096
    async with open_client(backend, model_files, context_policy="on", admin_key=ADMIN_KEY) as client:
        yield client


async def dry(client: httpx.AsyncClient, body: dict[str, Any], **fields: object) -> dict[str, Any]:
    answer = await client.post("/admin/v1/normalize", json={"body": body, **fields}, headers=ADMIN)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def of_policy(answer: dict[str, Any]) -> dict[str, Any]:
    return next(rule for rule in answer["rules"] if rule["name"] == "context_policy")


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("messages", [MESSAGES, DENSE, SHORT], ids=["long", "dense", "short"])
@pytest.mark.parametrize("max_tokens", [10, 1500])
async def test_tokens_are_those_of_the_request(
    client: httpx.AsyncClient, backend: FakeBackend, route: str, messages: list[dict[str, Any]], max_tokens: int
) -> None:
    body = body_of(route, messages)
    body["max_output_tokens" if route == "/v1/responses" else "max_tokens"] = max_tokens
    tried = await dry(client, body, endpoint=ENDPOINTS[route])
    sent = (await client.post(route, json=body)).json()
    assert tried["token_ids"] == backend.requests[-1].token_ids.tolist()
    assert tried["context_management"] == {"mode": "on", **sent["context_management"]}
    assert tried["regions"][-1]["end"] == len(tried["token_ids"])
    assert of_policy(tried)["fired"] == (messages is not SHORT)


async def test_canonical_body_is_what_is_sent(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    """Sent again, with the policy off, it makes the same prompt."""
    tried = await dry(client, body_of(ROUTES[0], MESSAGES))
    again = await dry(client, tried["canonical"], rules=[{**POLICY, "enabled": False}])
    assert len(tried["canonical"]["messages"]) < len(MESSAGES)
    assert again["token_ids"] == tried["token_ids"]
    assert again["context_management"] is None
    assert not backend.requests


async def test_rules_of_the_request_choose_the_policy(backend: FakeBackend, model_files: ModelFiles) -> None:
    backend.max_model_len = 4096
    async with open_client(backend, model_files, admin_key=ADMIN_KEY) as client:
        off = await dry(client, body_of(ROUTES[0], MESSAGES))
        on = await dry(client, body_of(ROUTES[0], MESSAGES), rules=[POLICY])
        lower = await dry(client, body_of(ROUTES[0], MESSAGES), rules=[{**POLICY, "params": {"low": 0.2}}])
    assert off["context_management"] is None
    sizes = [answer["context_management"]["input_tokens"] for answer in (on, lower)]
    assert len(off["token_ids"]) > sizes[0] > sizes[1]


async def test_audit_keeps_the_prompt_and_tells_what_would_go(client: httpx.AsyncClient) -> None:
    whole = await dry(client, body_of(ROUTES[0], MESSAGES), mode="off")
    tried = await dry(client, body_of(ROUTES[0], MESSAGES), mode="audit")
    told = tried["context_management"]
    assert tried["token_ids"] == whole["token_ids"]
    assert (told["mode"], told["original_input_tokens"]) == ("audit", len(whole["token_ids"]))
    assert told["input_tokens"] < 0.7 * told["original_input_tokens"]
    assert of_policy(tried)["fired"]
    assert "summarize" in of_policy(tried)["detail"]


@pytest.mark.parametrize(
    ("route", "wish"),
    [
        ("/v1/messages", {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}),
        ("/v1/responses", {"truncation": "auto"}),
    ],
)
async def test_wishes_of_a_client_are_tried_too(
    backend: FakeBackend, model_files: ModelFiles, route: str, wish: dict[str, Any]
) -> None:
    backend.max_model_len = 4096
    async with open_client(backend, model_files, admin_key=ADMIN_KEY) as client:
        tried = await dry(client, body_of(route, MESSAGES, **wish), endpoint=ENDPOINTS[route])
        sent = (await client.post(route, json=body_of(route, MESSAGES, **wish))).json()
    assert tried["token_ids"] == backend.requests[-1].token_ids.tolist()
    assert tried["context_management"] == {"mode": "on", **sent["context_management"]}


@pytest.mark.parametrize("above", [200, 400, 800])
async def test_wishes_are_measured_by_the_same_tokens(
    backend: FakeBackend, model_files: ModelFiles, above: int
) -> None:
    wish = clearing(trigger={"type": "input_tokens", "value": above}, clear_at_least=LEAST)
    asked = {"model": "tiny", "max_tokens": 50, "messages": used(8), "context_management": wish}
    backend.max_model_len = 4096
    async with open_client(backend, model_files, tool_template="hermes", admin_key=ADMIN_KEY) as client:
        tried = await dry(client, asked, endpoint="messages")
        sent = (await client.post("/v1/messages", json=asked)).json()
    assert sent["context_management"]["applied_edits"]
    assert tried["token_ids"] == backend.requests[-1].token_ids.tolist()
    assert tried["context_management"] == {"mode": "on", **sent["context_management"]}


async def test_wrong_length_of_the_answer_is_named(client: httpx.AsyncClient) -> None:
    body = body_of(ROUTES[0], SHORT, max_completion_tokens="many")
    answer = await client.post("/admin/v1/normalize", json={"body": body}, headers=ADMIN)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "body.max_completion_tokens"


async def test_answer_is_as_described(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json", headers=ADMIN)).json()
    schema = {"$ref": "#/components/schemas/DryRun", "components": document["components"]}
    jsonschema.validate(await dry(client, body_of(ROUTES[0], MESSAGES)), schema)
