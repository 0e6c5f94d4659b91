"""Answers against OpenAI's own description, which is not part of this repository.

`OPENAI_DESCRIPTION=FILE python -m pytest -m spec`; without the file it fails, it never skips.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from tests.gateway.support.fake_backend import FakeBackend

pytestmark = pytest.mark.spec

MESSAGES = [{"role": "user", "content": "hi"}]
ASKED: dict[str, dict[str, Any]] = {
    "/chat/completions": {"model": "tiny", "messages": MESSAGES},
    "/completions": {"model": "tiny", "prompt": "hi"},
    "/responses": {"model": "tiny", "input": "hi"},
}


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    return in_json_schema(json.loads(Path(os.environ["OPENAI_DESCRIPTION"]).read_text()))


def in_json_schema(value: Any) -> Any:
    """The file says `nullable` in places, which was OpenAPI's before 3.1."""
    if isinstance(value, list):
        return [in_json_schema(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    read = {name: in_json_schema(entry) for name, entry in value.items()}
    return {"anyOf": [read, {"type": "null"}]} if read.pop("nullable", False) is True else read


def check(
    published: dict[str, Any], path: str, said: Any, *, method: str = "post", media_type: str = "application/json"
) -> None:
    content = published["paths"][path][method]["responses"]["200"]["content"]
    schema = {**content[media_type]["schema"], "components": published["components"]}
    jsonschema.validate(said, schema, jsonschema.Draft202012Validator)


@pytest.mark.parametrize("ends", [True, False], ids=["stop", "length"])
@pytest.mark.parametrize("path", ASKED)
async def test_whole_answers(
    client: httpx.AsyncClient, backend: FakeBackend, published: dict[str, Any], path: str, ends: bool
) -> None:
    backend.ends = ends
    answer = await client.post(f"/v1{path}", json=ASKED[path])
    assert answer.status_code == 200
    check(published, path, answer.json())


@pytest.mark.parametrize("path", ["/chat/completions", "/responses"])  # it describes no chunk of a completion
async def test_streams(client: httpx.AsyncClient, published: dict[str, Any], path: str) -> None:
    answer = await client.post(f"/v1{path}", json={**ASKED[path], "stream": True})
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    assert len(events) > 3
    for event in events:
        check(published, path, event, media_type="text/event-stream")


async def test_logprobs(client: httpx.AsyncClient, published: dict[str, Any]) -> None:
    asked = {**ASKED["/chat/completions"], "logprobs": True, "top_logprobs": 2}
    check(published, "/chat/completions", (await client.post("/v1/chat/completions", json=asked)).json())


async def test_models(client: httpx.AsyncClient, published: dict[str, Any]) -> None:
    check(published, "/models", (await client.get("/v1/models")).json(), method="get")
    check(published, "/models/{model}", (await client.get("/v1/models/tiny")).json(), method="get")


async def test_errors(client: httpx.AsyncClient, published: dict[str, Any]) -> None:
    answer = await client.post("/v1/chat/completions", json={"model": "other", "messages": MESSAGES})
    assert answer.status_code == 404
    schema = {"$ref": "#/components/schemas/ErrorResponse", "components": published["components"]}
    jsonschema.validate(answer.json(), schema, jsonschema.Draft202012Validator)
