"""`GET /admin/v1/requests/{id}/explain`: what it says, what it shows and to whom."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import numpy as np
import pytest

from gateway.backends.control import ExplainedRequest
from gateway.explain.places import Kind, Place
from gateway.explain.records import PromptRecord, PromptRecords
from gateway.explain.report import MissReports
from gateway.model_files import ModelFiles
from gateway.normalize.modes import Place as RulePlace
from gateway.normalize.modes import RuleModes
from gateway.normalize.registry import Choice
from gateway.normalize.rule import Mode
from gateway.normalize.rules import built_in_rules
from gateway.tokenizer import Tokenizer
from prefixcache.interface import Explanation, Reason
from tests.gateway.conftest import open_client
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.test_chat import PATH, chat
from tests.gateway.test_system import ADMIN

ROUTE = "/v1/chat/completions"
CALLS = ("call_", "aaaa goes on", "bbbb goes on")
"""A beginning and two ends that canonical_call_ids makes equal."""


@contextlib.asynccontextmanager
async def open_admin(
    backend: FakeBackend, files: ModelFiles, monkeypatch: pytest.MonkeyPatch, **settings: object
) -> AsyncIterator[httpx.AsyncClient]:
    monkeypatch.setenv("PREFIXGATE_ADMIN_KEY", "open-sesame")
    async with open_client(backend, files, **settings) as client:
        client.headers.update(ADMIN)
        yield client


async def explained(client: httpx.AsyncClient, name: str) -> dict[str, Any]:
    answer = await client.get(f"/admin/v1/requests/{name}/explain")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_report_says_what_differs_and_shows_text_only_where_content_is_stored(
    backend: FakeBackend, model_files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for stores in (True, False):
        backend.forget()
        async with open_admin(backend, model_files, monkeypatch, store_content=stores) as client:
            first = (await client.post(PATH, json=chat("the quick brown fox"))).json()["id"]
            answer = await client.post(PATH, json=chat("the lazy dog"), headers={"x-request-id": "mine"})
            report = await explained(client, "mine")
            assert await explained(client, answer.json()["id"]) == report
            assert report["nearest"] == first
            assert (report["reason"], report["request_id"], report["tenant"]) == ("diverged", "mine", "default")
            assert report["num_lost_tokens"] == report["num_prompt_tokens"] - report["num_cached_tokens"] > 0
            assert report["block"] * 8 == report["num_cached_tokens"]
            assert report["diverges"]
            assert str(report["token"]) in report["sentence"]
            seen.append(report)
    shown, hidden = seen
    assert shown["common"].endswith("user\nthe ")
    assert (shown["prompt"][:8], shown["cached"][:15]) == ("lazy dog", "quick brown fox")
    assert not {"common", "prompt", "cached"} & hidden.keys()
    assert hidden["prompt_digest"] != hidden["cached_digest"]
    assert "lazy" not in str(hidden)


async def test_report_needs_the_admin_key_and_a_request_that_is_known(
    backend: FakeBackend, model_files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_admin(backend, model_files, monkeypatch) as client:
        name = (await client.post(PATH, json=chat())).json()["id"]
        for headers in ({"authorization": ""}, {"authorization": "Bearer other"}):
            assert (await client.get(f"/admin/v1/requests/{name}/explain", headers=headers)).status_code == 401
        answer = await client.get("/admin/v1/requests/nobody/explain")
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "id")
        backend.explained.clear()  # as after a restart of the engine
        assert (await client.get(f"/admin/v1/requests/{name}/explain")).status_code == 404
        backend.is_up = False
        assert (await client.get(f"/admin/v1/requests/{name}/explain")).status_code == 503


def test_records_are_forgotten_oldest_first() -> None:
    records = PromptRecords(max_records=2)
    for name in "abc":
        records.note(record_of(name, None))
    assert [bool(records.find(name)) for name in "abc"] == [False, True, True]


def record_of(name: str, place: Place | None, *tools: str) -> PromptRecord:
    rendered = None if place is None else Laid([place])
    roles = () if place is None else (place.kind.value,)
    return PromptRecord(name, f"request {name}", "acme", ROUTE, 40, place.start if place else 0, roles, tools, rendered)


@dataclass
class Laid:
    """A prompt whose regions are known."""

    regions: list[Place]
    num_chars: int = 10


def test_texts_are_forgotten_before_the_records() -> None:
    place = Place("messages[0]", Kind.SYSTEM, 0, 9)
    records = PromptRecords(max_chars=20)
    for name in "abc":
        records.note(record_of(name, place))
    assert [bool(records.find(name).rendered) for name in "abc"] == [False, True, True]
    records.note(record_of("b", None))
    records.note(record_of("d", place))
    assert [bool(records.find(name).rendered) for name in "abcd"] == [False, False, True, True]


def explanation_of(tokenizer: Tokenizer, before: str, prompt: str, cached: str, **fields: Any) -> Explanation:
    common, ahead, chain = (tokenizer.encode(text).astype(np.int32) for text in (before, prompt, cached))
    explanation = Explanation(
        num_prompt_tokens=100,
        num_cached_tokens=8,
        num_pending_tokens=0,
        reason=Reason.DIVERGED,
        block=1,
        num_common_tokens=len(common),
        common=common.tobytes(),
        prompt_ahead=ahead.tobytes(),
        cached_ahead=chain.tobytes(),
        owner=1,
        evictions_ago=None,
        moment=9,
    )
    return replace(explanation, **fields)


@pytest.mark.parametrize(
    ("chosen", "reason", "rule"),
    [
        ({}, Reason.DIVERGED, None),  # on by default, so it is not what was missing
        ({"crlf_to_lf_system": Mode.OFF}, Reason.DIVERGED, {"name": "crlf_to_lf_system", "mode": "off"}),
        ({"crlf_to_lf_system": Mode.AUDIT}, Reason.NEVER_CACHED, {"name": "crlf_to_lf_system", "mode": "audit"}),
        ({"crlf_to_lf_system": Mode.OFF}, Reason.EVICTED, None),
        ({"crlf_to_lf_system": Mode.OFF}, Reason.COLD_RESTART, None),
    ],
)
async def test_report_names_the_rule_and_its_mode_for_this_tenant(
    backend: FakeBackend, tokenizer: Tokenizer, chosen: dict[str, Mode], reason: Reason, rule: object
) -> None:
    choices = {RulePlace("acme", "*", name): Choice(mode) for name, mode in chosen.items()}
    records = PromptRecords()
    reports = MissReports(backend, records, tokenizer, RuleModes(built_in_rules(), choices), shows_content=False)
    explanation = explanation_of(tokenizer, "Be kind.", "\nBe brief, please", "\r\nBe brief, please", reason=reason)
    records.note(record_of("a", Place("messages[0]", Kind.SYSTEM, 0, 90)))
    backend.explained["a"] = ExplainedRequest(explanation, None)
    report = await reports.report("a")
    assert report is not None
    assert report["rule"] == rule
    assert report["region"] == {"owner": "messages[0]", "start": 0, "end": 90}
    assert "messages[0]" in report["sentence"] or reason not in (Reason.DIVERGED, Reason.NEVER_CACHED)


async def test_report_compares_the_names_of_the_tools_with_those_of_the_nearest_request(
    backend: FakeBackend, tokenizer: Tokenizer
) -> None:
    records = PromptRecords()
    modes = RuleModes(built_in_rules(), {RulePlace("*", "*", "canonical_tool_order"): Choice(Mode.OFF)})
    reports = MissReports(backend, records, tokenizer, modes, shows_content=False)
    place = Place("tools[0]", Kind.TOOLS, 0, 20)
    for name, tools in (("near", ("x", "y")), ("swapped", ("y", "x")), ("other", ("y", "z")), ("same", ("x", "y"))):
        records.note(record_of(name, place, *tools))
        backend.explained[name] = ExplainedRequest(explanation_of(tokenizer, "{", "yes", "no"), "near")
    rules = [(await reports.report(name) or {})["rule"] for name in ("swapped", "other", "same")]
    assert rules == [{"name": "canonical_tool_order", "mode": "off"}, None, None]


@pytest.mark.parametrize(
    ("kind", "fields", "is_cut"),
    [
        (Kind.ASSISTANT, {}, True),
        (Kind.ASSISTANT, {"reason": Reason.NEVER_CACHED}, True),
        (Kind.ASSISTANT, {"reason": Reason.EVICTED}, False),
        (Kind.ASSISTANT, {"prompt_ahead": b"", "cached_ahead": b""}, False),
        (Kind.SYSTEM, {}, False),  # no cut changes the head
    ],
)
async def test_report_says_that_the_context_policy_cut_the_chat_here(
    backend: FakeBackend, tokenizer: Tokenizer, kind: Kind, fields: dict[str, Any], is_cut: bool
) -> None:
    records = PromptRecords()
    modes = RuleModes(built_in_rules(), {RulePlace("*", "*", "canonical_call_ids"): Choice(Mode.OFF)})
    reports = MissReports(backend, records, tokenizer, modes, shows_content=False)
    place, explanation = Place("messages[0]", kind, 0, 90), explanation_of(tokenizer, *CALLS, **fields)
    for name, cut_tokens in (("cut", 5120), ("whole", None)):
        records.note(replace(record_of(name, place), cut_tokens=cut_tokens))
        backend.explained[name] = ExplainedRequest(explanation, None)
    cut, whole = await reports.report("cut"), await reports.report("whole")
    assert cut is not None
    assert whole is not None
    assert whole["context_cut"] is None
    assert cut["context_cut"] == ({"cleared_tokens": 5120} if is_cut else None)
    assert ("the context policy cut this chat here: about 5120 tokens" in cut["sentence"]) == is_cut
    assert (cut["sentence"] == whole["sentence"]) != is_cut
    assert cut["rule"] == (None if is_cut else whole["rule"])
    if is_cut:
        assert whole["rule"] == {"name": "canonical_call_ids", "mode": "off"}
