"""What the prompt registry refuses, and in which words."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.support.prompts import PAST, SUPPORT, chat, register
from tests.gateway.support.stored_gateway import Gateway

pytestmark = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
"""Refusals know nothing of the database."""

MISSING = "pmt_000000000000000000000000"


@pytest.mark.parametrize(
    ("reference", "status", "param"),
    [
        ({"id": "nobody"}, 404, "prompt.id"),
        ({"id": "private"}, 404, "prompt.id"),
        ({"id": "support", "version": "2"}, 404, "prompt.version"),
        ({"id": "support", "version": "two"}, 400, "prompt.version"),
        ({"id": "support", "version": 0}, 400, "prompt.version"),
        ({"id": "support"}, 400, "prompt.variables.day"),
        ({"id": "support", "variables": {"day": 1}}, 400, "prompt.variables.day"),
        ({"id": "support", "variables": {"day": "1", "night": "2"}}, 400, "prompt.variables.night"),
        ({"id": "support", "variables": []}, 400, "prompt.variables"),
        ({"id": 7}, 400, "prompt.id"),
        ({"id": "support", "text": ""}, 400, "prompt.text"),
        ("support", 400, "prompt"),
    ],
)
async def test_chat_that_names_a_prompt_wrongly_is_told(
    gateway: Gateway, reference: object, status: int, param: str
) -> None:
    await gateway.admin.post("/tenants", json={"name": "acme"})
    await register(gateway, text=SUPPORT + "{{day}}", slots=["day"])
    await register(gateway, "private", scope="acme")
    answer = await chat(gateway, None, prompt=reference)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


@pytest.mark.parametrize(
    ("body", "status", "param", "says"),
    [
        ({"name": "support"}, 409, "name", "got 'support'"),
        ({"name": "x", "text": None}, 400, "text", "got neither text and messages"),
        ({"name": "x", "messages": [{"role": "user", "content": "hi"}]}, 400, "text", "got both"),
        ({"name": ""}, 400, "name", "got ''"),
        ({"name": "a\nb"}, 400, "name", "printable"),
        ({"name": "x" * 101}, 400, "name", "100"),
        ({"name": "x", "text": ""}, 400, "text", "got ''"),
        ({"name": "x", "text": None, "messages": []}, 400, "messages", "wanted"),
        ({"name": "x", "text": None, "messages": [{"role": "wizard", "content": ""}]}, 400, "messages[0].role", "got"),
        ({"name": "x", "slots": ["day"]}, 400, "slots[0]", "wanted a name that occurs in the text as {{day}}"),
        ({"name": "x", "slots": ["a b"]}, 400, "slots[0]", "got 'a b'"),
        ({"name": "x", "scope": "nobody"}, 404, "scope", "got 'nobody'"),
        ({"name": "x", "text": "q9" * 400}, 400, "text", "wanted at most 510"),
        ({"name": "x", "text": "lazy dog " * 600}, 400, "messages", "wanted at most 5110"),
        ({"name": "x", "model": "other"}, 400, "model", "wanted 'tiny'"),
        ({"name": "x", "retention": {"expires_at": PAST}}, 400, "retention.expires_at", "wanted a time to come"),
        ({"name": "x", "retention": {"pin": "yes"}}, 400, "retention.pin", "got 'yes'"),
        ({"name": "x", "retention": {"priority": -1}}, 400, "retention.priority", "got -1"),
        ({"name": "x", "rules": {"no_such": "off"}}, 400, "rules.no_such", "unknown, wanted one of"),
        ({"name": "x", "tools": [{"type": "function"}]}, 400, "tools[0].function", "wanted"),
        ({"name": "x", "owner": "me"}, 400, "owner", "unknown"),
    ],
)
async def test_prompt_of_no_use_is_refused_and_nothing_is_kept(
    gateway: Gateway, body: dict[str, Any], status: int, param: str, says: str
) -> None:
    await register(gateway)
    answer = await gateway.admin.post("/prompts", json={"text": SUPPORT, **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert says in error["message"]
    assert len((await gateway.admin.get("/prompts?retired=true")).json()["data"]) == 1


async def test_registering_needs_an_engine(gateway: Gateway) -> None:
    gateway.backend.is_up = False
    answer = await gateway.admin.post("/prompts", json={"name": "x", "text": SUPPORT})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "3")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/versions/1"),
        ("GET", "/diff?from=1&to=2"),
        ("GET", "/statistics"),
        ("GET", "/drift"),
        ("POST", "/rollback"),
        ("POST", "/retire"),
        ("POST", "/warm"),
        ("DELETE", ""),
    ],
)
async def test_unknown_prompt_is_not_found_everywhere(gateway: Gateway, method: str, path: str) -> None:
    answer = await gateway.admin.request(method, f"/prompts/{MISSING}{path}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "prompt")
