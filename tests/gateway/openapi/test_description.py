"""The description tells of every path, and answers are as it says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from fastapi import FastAPI
from starlette.routing import BaseRoute

from gateway.app import create_app
from gateway.model_files import ModelFiles
from gateway.openapi.document import served_operations
from gateway.settings import Settings
from gateway.storage.store import open_store
from gateway.upstream.app import create_upstream_app, pool_of
from tests.gateway.support.fake_backend import FakeBackend

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = {"model": "tiny", "messages": MESSAGES}
COMPLETION = {"model": "tiny", "prompt": "hi"}
MESSAGE = {"model": "tiny", "messages": MESSAGES, "max_tokens": 9}


@pytest.fixture(params=["engine", "upstream"])
async def app(
    request: pytest.FixtureRequest, backend: FakeBackend, model_files: ModelFiles, tmp_path: Path
) -> AsyncIterator[FastAPI]:
    """Each kind of gateway, with everything that it can have."""
    upstream = ["http://127.0.0.1:1"] if request.param == "upstream" else []
    settings = Settings(db=f"sqlite+aiosqlite:///{tmp_path}/prefixgate.db", admin_key="open-sesame", upstream=upstream)  # type: ignore[arg-type]
    store = open_store(settings)  # never used, so no tables
    if upstream:
        yield create_upstream_app(settings, pool_of(settings), store=store)
    else:
        yield create_app(settings, backend, model_files, store=store)
    await store.database.close()


async def description_of(app: FastAPI) -> dict[str, Any]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        return (await client.get("/openapi.json")).json()


async def test_every_served_path_is_described_and_no_other(app: FastAPI) -> None:
    described = await description_of(app)
    told = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    assert told == set(served_operations(routes_of(app.routes)))


def routes_of(routes: Sequence[BaseRoute]) -> Iterator[BaseRoute]:
    """FastAPI keeps an included router as one route."""
    for route in routes:
        included = getattr(route, "original_router", None)
        yield from [route] if included is None else routes_of(included.routes)


async def test_every_operation_tells_of_what_may_go_wrong(app: FastAPI) -> None:
    described = await description_of(app)
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            told = set(operation["responses"])
            assert "500" in told, (method, path)
            assert ("401" in told) == ("security" in operation or path.endswith("/login")), (method, path)
            assert ("403" in told) >= path.startswith("/admin"), (method, path)
            assert ({"400", "413"} <= told) >= ("requestBody" in operation), (method, path)


async def test_every_reference_leads_somewhere_and_every_schema_is_one(app: FastAPI) -> None:
    described = await description_of(app)
    for reference in set(references(described)):
        found: Any = described
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]
    for schema in described["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for entry in value.values():
            yield from references(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from references(entry)


class Described:
    """A gateway and what it says of itself."""

    def __init__(self, client: httpx.AsyncClient, description: dict[str, Any]) -> None:
        self._client = client
        self._description = description

    async def ask(self, method: str, path: str, template: str = "", **body: Any) -> Any:
        """Send a request; check the answer against what is said of its status."""
        answer = await self._client.request(method, path, json=body or None)
        operation = self._description["paths"][template or path][method.lower()]
        media_type = answer.headers["content-type"].partition(";")[0]
        schema = operation["responses"][str(answer.status_code)]["content"][media_type]["schema"]
        said = answer.json() if media_type == "application/json" else answer.text
        if media_type != "text/event-stream":  # whose schema is that of one event
            self.check(schema, said)
        return said

    def check(self, schema: dict[str, Any], said: Any) -> None:
        components = {"components": self._description["components"]}
        jsonschema.validate(said, {**schema, **components}, jsonschema.Draft202012Validator)

    def check_events(self, name: str, text: str) -> int:
        """Check the data of server-sent events; give how many they are."""
        lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        events = [json.loads(line) for line in lines if line != "[DONE]"]
        for event in events:
            self.check({"$ref": f"#/components/schemas/{name}"}, event)
        return len(events)


@pytest.fixture
async def described(client: httpx.AsyncClient) -> Described:
    return Described(client, (await client.get("/openapi.json")).json())


@pytest.mark.parametrize("fields", [{}, {"logprobs": True, "top_logprobs": 2}], ids=["plain", "logprobs"])
async def test_chats_are_as_described(described: Described, fields: dict[str, Any]) -> None:
    assert (await described.ask("POST", "/v1/chat/completions", **CHAT, **fields))["choices"]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    text = await described.ask("POST", "/v1/chat/completions", **CHAT, **fields, **options)
    assert described.check_events("ChatCompletionChunk", text) > 3


async def test_completions_are_as_described(described: Described) -> None:
    assert (await described.ask("POST", "/v1/completions", **COMPLETION))["choices"]
    text = await described.ask("POST", "/v1/completions", **COMPLETION, stream=True)
    assert described.check_events("Completion", text) > 3


async def test_messages_are_as_described(described: Described) -> None:
    assert (await described.ask("POST", "/v1/messages", **MESSAGE))["content"]
    text = await described.ask("POST", "/v1/messages", **MESSAGE, stream=True)
    assert described.check_events("MessageEvent", text) > 3
    await described.ask("POST", "/v1/messages/count_tokens", model="tiny", messages=MESSAGES)


async def test_responses_are_as_described(described: Described) -> None:
    asked = {"model": "tiny", "input": "hi", "max_output_tokens": 9}
    assert (await described.ask("POST", "/v1/responses", **asked))["output"]
    text = await described.ask("POST", "/v1/responses", **asked, stream=True)
    assert described.check_events("ResponseEvent", text) > 3


async def test_small_answers_are_as_described(described: Described) -> None:
    for path in ("/v1/models", "/health", "/ready", "/version", "/metrics"):
        await described.ask("GET", path)
    await described.ask("GET", "/v1/models/tiny", "/v1/models/{model_id}")
    tokens = (await described.ask("POST", "/tokenize", model="tiny", prompt="hi", return_token_strs=True))["tokens"]
    await described.ask("POST", "/detokenize", tokens=tokens)


async def test_errors_are_as_described(described: Described, backend: FakeBackend) -> None:
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION), ("/v1/messages", MESSAGE)):
        for wrong in ({"temperature": 9}, {"model": "other"}, {"max_tokens": 0}):
            assert "error" in await described.ask("POST", path, **{**body, **wrong})
        backend.is_up = False
        assert "error" in await described.ask("POST", path, **body)
        backend.is_up = True
    assert "error" in await described.ask("GET", "/v1/models/other", "/v1/models/{model_id}")
