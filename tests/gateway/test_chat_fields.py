"""Every field that a chat may have beside its messages: honoured, ignored and counted, or refused by its name."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.test_chat import PATH, chat
from tests.gateway.test_metrics import growth, scrape

HONOURED: dict[str, Any] = {
    "max_completion_tokens": 5,
    "chat_template_kwargs": {"x": 1},
    "prompt_cache_key": "k",
    "cache_salt": "s",
    "user": "me",
    "safety_identifier": "me",
    "reasoning_effort": "low",
    "parallel_tool_calls": True,
    "n": 2,
    "prompt_logprobs": 1,
}
IGNORED: dict[str, Any] = {
    "metadata": {"a": "b"},
    "service_tier": "auto",
    "prompt_cache_retention": "24h",
    "verbosity": "low",
    "prediction": {"type": "content", "content": "x"},
}
NEUTRAL: dict[str, tuple[Any, Any]] = {
    # field: the value that changes nothing, and one that would
    "store": (False, True),
    "modalities": (["text"], ["text", "audio"]),
    "audio": ({}, {"voice": "alloy", "format": "wav"}),
    "functions": ([], [{"name": "f"}]),
    "function_call": ("none", "auto"),
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "n-zero": ({"n": 0}, "n"),
    "n-many": ({"n": 129}, "n"),
    "n-float": ({"n": 1.0}, "n"),
    "n-bool": ({"n": True}, "n"),
    "prompt-logprobs-negative": ({"prompt_logprobs": -1}, "prompt_logprobs"),
    "prompt-logprobs-many": ({"prompt_logprobs": 21}, "prompt_logprobs"),
    "prompt-logprobs-bool": ({"prompt_logprobs": True}, "prompt_logprobs"),
    "prompt-logprobs-streamed": ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    "cache-salt-number": ({"cache_salt": 5}, "cache_salt"),
    "web-search": ({"web_search_options": {}}, "web_search_options"),
    "audio": (
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        "messages[0].content[0].type",
    ),
    "file": (
        {"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]},
        "messages[0].content[0].file.file_id",
    ),
    "file-of-nobody": (
        {"messages": [{"role": "assistant", "content": [{"type": "file", "file": {}}]}]},
        "messages[0].content[0].type",
    ),
}


@pytest.mark.parametrize("field", [*HONOURED, *IGNORED])
async def test_field_is_taken_and_counted_where_it_is_ignored(client: httpx.AsyncClient, field: str) -> None:
    before = await scrape(client)
    answer = await client.post(PATH, json=chat(**{field: {**HONOURED, **IGNORED}[field]}))
    assert answer.status_code == 200, answer.text
    grown = growth(before, await scrape(client))
    counted = {name: value for name, value in grown.items() if name.startswith("prefixgate_unknown_fields_total")}
    assert counted == ({f"prefixgate_unknown_fields_total[{field}]": 1} if field in IGNORED else {})


@pytest.mark.parametrize("field", NEUTRAL)
async def test_only_the_value_that_changes_nothing_is_taken(
    client: httpx.AsyncClient, backend: FakeBackend, field: str
) -> None:
    neutral, other = NEUTRAL[field]
    assert (await client.post(PATH, json=chat(**{field: neutral}))).status_code == 200
    refused = await client.post(PATH, json=chat(**{field: other}))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
    assert len(backend.requests) == 1


@pytest.mark.parametrize(("fields", "param"), REFUSED.values(), ids=REFUSED)
async def test_what_is_wrong_is_named(
    client: httpx.AsyncClient, backend: FakeBackend, fields: dict[str, Any], param: str
) -> None:
    answer = await client.post(PATH, json=chat(**fields))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["message"].startswith(f"{param}: ")
    assert not backend.requests
