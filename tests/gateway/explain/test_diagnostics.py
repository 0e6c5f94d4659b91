"""Diagnostics in an answer: both providers' shapes, read by their own SDKs' types, and never of another tenant."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest
from anthropic.types import Diagnostics as AnthropicDiagnostics
from openai.types.responses.response import PromptCacheDiagnostics
from pydantic import TypeAdapter

from gateway.backends.base import BackendUnavailableError
from gateway.backends.control import ExplainedRequest
from gateway.explain.diagnostics import Diagnostics
from gateway.explain.places import Kind, Place
from gateway.explain.provider_shapes import Finding, anthropic_diagnostics, finding_of, openai_diagnostics
from gateway.explain.records import PromptRecords
from gateway.explain.request import DiagnosticsRequest
from gateway.tokenizer import Tokenizer
from prefixcache.interface import Reason
from tests.gateway.explain.test_report import explanation_of, record_of
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.test_chat import PATH, chat, events

OPENAI = TypeAdapter[Any](PromptCacheDiagnostics)
ANTHROPIC = TypeAdapter[Any](AnthropicDiagnostics | None)


def asked(baseline: str | None) -> dict[str, Any]:
    return {
        "diagnostics": {"previous_message_id": baseline},
        "prompt_cache_options": {"comparison_response_id": baseline},
    }


async def test_answer_has_no_diagnostics_unless_asked(client: httpx.AsyncClient) -> None:
    assert not {"diagnostics", "prompt_cache_diagnostics"} & (await client.post(PATH, json=chat())).json().keys()


async def test_first_turn_and_unknown_response(client: httpx.AsyncClient) -> None:
    first = (await client.post(PATH, json=chat(**asked(None)))).json()
    assert first["diagnostics"] is None
    assert "prompt_cache_diagnostics" not in first
    unknown = (await client.post(PATH, json=chat(**asked("chatcmpl-nobody")))).json()
    assert unknown["diagnostics"] == {"cache_miss_reason": {"type": "previous_message_not_found"}}
    assert unknown["prompt_cache_diagnostics"] == {"type": "comparison_response_not_found"}


@pytest.mark.parametrize("stream", [False, True])
async def test_repeated_prompt_is_a_hit_and_a_changed_one_is_told(client: httpx.AsyncClient, stream: bool) -> None:
    first = (await client.post(PATH, json=chat("the quick brown fox"))).json()["id"]
    told = []
    for content in ("the quick brown fox", "the lazy dog"):
        answer = await client.post(PATH, json=chat(content, stream=stream, **asked(first)))
        body = events(answer)[-2] if stream else answer.json()
        told.append((body["diagnostics"], body["prompt_cache_diagnostics"]))
    assert told[0] == (None, {"type": "cache_hit"})
    anthropic, openai = told[1][0]["cache_miss_reason"], told[1][1]
    assert (anthropic["type"], openai["type"], openai["reason"]) == ("messages_changed", "cache_miss", "input_changed")
    assert anthropic["cache_missed_input_tokens"] == openai["cache_missed_tokens"] > 0


async def test_engine_that_does_not_answer_is_unavailable_and_no_error(
    client: httpx.AsyncClient, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(*_: object, **__: object) -> None:
        raise BackendUnavailableError("the engine did not answer within 10 s")

    first = (await client.post(PATH, json=chat())).json()["id"]
    monkeypatch.setattr(backend, "explain_request", hangs)
    body = (await client.post(PATH, json=chat(**asked(first)))).json()
    assert body["prompt_cache_diagnostics"] == {"type": "unavailable"}
    assert body["diagnostics"] == {"cache_miss_reason": {"type": "unavailable"}}
    assert body["choices"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"diagnostics": "yes"}, "diagnostics"),
        ({"diagnostics": {"previous_message_id": 7}}, "diagnostics.previous_message_id"),
        ({"prompt_cache_options": []}, "prompt_cache_options"),
        (
            {"prompt_cache_options": {"comparison_response_id": 7}},
            "prompt_cache_options.comparison_response_id",
        ),
    ],
)
async def test_bad_request_for_diagnostics_names_the_field(
    client: httpx.AsyncClient, fields: dict[str, object], param: str
) -> None:
    answer = await client.post(PATH, json=chat(**fields))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_response_of_another_tenant_is_as_unknown_as_one_that_never_was(
    backend: FakeBackend, tokenizer: Tokenizer
) -> None:
    records = PromptRecords()
    diagnostics = Diagnostics(backend, records)
    mine = record_of("mine", Place("messages[0]", Kind.SYSTEM, 0, 90))
    for record in (mine, record_of("before", None), replace(record_of("theirs", None), tenant_id="b")):
        diagnostics.note(record)
    backend.explained["mine"] = ExplainedRequest(explanation_of(tokenizer, "Be", " kind", " brief"), "theirs")
    told = {
        name: await diagnostics.fields(DiagnosticsRequest(True, name, name), mine)
        for name in ("before", "theirs", "nobody")
    }
    assert told["theirs"] == told["nobody"]
    assert told["before"]["diagnostics"]["cache_miss_reason"]["type"] == "system_changed"
    assert "theirs" not in str(told["before"])


async def test_other_scopes_are_never_asked_for(backend: FakeBackend, tokenizer: Tokenizer) -> None:
    asked_with = []

    class Spy(FakeBackend):
        async def explain_request(self, request_id: str, **options: bool) -> ExplainedRequest:
            asked_with.append(options)
            return ExplainedRequest(explanation_of(tokenizer, "Be", " kind", " brief"), None)

    records = PromptRecords()
    diagnostics = Diagnostics(Spy(), records)
    diagnostics.note(record_of("before", None))
    await diagnostics.fields(DiagnosticsRequest(True, "before", "before"), record_of("mine", None))
    assert asked_with == [{}, {}]


CHANGED = [
    (Kind.SYSTEM, "input_changed", "system_changed"),
    (Kind.TOOLS, "tools_changed", "tools_changed"),
    (Kind.USER, "input_changed", "messages_changed"),
    (Kind.ASSISTANT, "input_changed", "messages_changed"),
    (Kind.TOOL, "input_changed", "messages_changed"),
    (Kind.TURN, "input_changed", "messages_changed"),
    (Kind.TEMPLATE, None, None),
    (None, None, None),
]


@pytest.mark.parametrize(("kind", "openai", "anthropic"), CHANGED, ids=str)
def test_region_in_the_words_of_both_providers_is_what_their_sdks_read(
    kind: Kind | None, openai: str | None, anthropic: str | None
) -> None:
    finding = Finding(is_hit=False, kind=kind, num_missed_tokens=12)
    theirs = OPENAI.validate_python(openai_diagnostics(finding))
    assert (theirs.type, getattr(theirs, "reason", None)) == ("cache_miss" if openai else "unavailable", openai)
    reason = ANTHROPIC.validate_python(anthropic_diagnostics(finding)).cache_miss_reason
    assert reason.type == (anthropic or "unavailable")
    if openai:
        assert (theirs.cache_missed_tokens, reason.cache_missed_input_tokens) == (12, 12)


def test_the_rest_of_the_words_are_what_their_sdks_read() -> None:
    hit = Finding(is_hit=True, kind=None, num_missed_tokens=0)
    types = [openai_diagnostics(None), openai_diagnostics(hit), openai_diagnostics(None, is_found=False)]
    assert [OPENAI.validate_python(shape).type for shape in types] == [
        "unavailable",
        "cache_hit",
        "comparison_response_not_found",
    ]
    assert set(Kind) == {kind for kind, _, _ in CHANGED if kind}
    assert ANTHROPIC.validate_python(anthropic_diagnostics(hit)) is None
    not_found = ANTHROPIC.validate_python(anthropic_diagnostics(None, is_found=False))
    assert not_found.cache_miss_reason.type == "previous_message_not_found"


@pytest.mark.parametrize(
    ("reason", "sides", "is_hit", "kind"),
    [
        (Reason.DIVERGED, (" kind", " brief"), False, Kind.SYSTEM),
        (Reason.NEVER_CACHED, (" kind", " brief"), False, Kind.SYSTEM),
        (Reason.COPIED, (" kind", " brief"), False, Kind.SYSTEM),
        (Reason.NEVER_CACHED, (" kind", ""), True, None),  # the next turn
        (Reason.HIT, ("", ""), True, None),
        (Reason.SHARE_CAP, ("", ""), True, None),
        *((reason, (" kind", " brief"), False, None) for reason in (Reason.EVICTED, Reason.COLD_RESTART)),
        *((reason, ("", ""), False, None) for reason in (Reason.EVICTED, Reason.NOT_READY, Reason.DISABLED)),
    ],
)
def test_finding_of_each_reason(
    tokenizer: Tokenizer, reason: Reason, sides: tuple[str, str], is_hit: bool, kind: Kind | None
) -> None:
    explanation = explanation_of(tokenizer, "Be", *sides, reason=reason)
    record = record_of("mine", Place("messages[0]", Kind.SYSTEM, 0, 90))
    baseline = replace(record_of("before", None), num_prompt_tokens=30)
    missed = 30 - explanation.num_common_tokens
    assert finding_of(explanation, record, baseline) == Finding(is_hit, kind, missed)


def test_cut_by_the_context_policy_is_no_change_of_the_client(tokenizer: Tokenizer) -> None:
    explanation = explanation_of(tokenizer, "Be", " kind", " brief")
    baseline = replace(record_of("before", None), num_prompt_tokens=30)
    for kind, theirs in ((Kind.USER, None), (Kind.SYSTEM, Kind.SYSTEM)):
        record = replace(record_of("mine", Place("messages[0]", kind, 0, 90)), cut_tokens=12)
        assert finding_of(explanation, record, baseline).kind is theirs
