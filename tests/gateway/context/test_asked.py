"""What clients ask for about the context of their own chat, through the endpoints and with the real SDKs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import orjson
import pytest
from anthropic.types.beta import BetaClearToolUses20250919EditResponse

from gateway.app import create_app
from gateway.errors import InvalidRequestError
from gateway.messages_request import parse_count_request, parse_messages_request
from gateway.model_files import ModelFiles
from gateway.responses_request import parse_responses_request
from gateway.settings import Settings
from gateway.tokenizer import Tokenizer
from tests.gateway.conftest import open_client
from tests.gateway.context.histories import words
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.server import running
from tests.gateway.support.tiny_model import EOS_ID, TEMPLATE, write_model

MESSAGES, COUNT, RESPONSES = "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"
NUM_OPENING_TOKENS = 12
"""Those behind the last turn, with which the answer begins, are fewer."""
BETAS = ["context-management-2025-06-27"]


def used(number: int, *, num_words: int = 40) -> list[dict[str, Any]]:
    """An agent's loop; result `i` holds `fact i`."""
    turns: list[dict[str, Any]] = [{"role": "user", "content": "look around"}]
    for index in range(number):
        call = {"type": "tool_use", "id": f"c{index}", "name": "search", "input": {"at": index}}
        result = {"type": "tool_result", "tool_use_id": f"c{index}", "content": f"{words(num_words)} fact {index}."}
        turns += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return turns


def clearing(*, above: int = 3, keep: int = 1, **fields: Any) -> dict[str, Any]:
    edit = {"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": above}}
    return {"edits": [{**edit, "keep": {"type": "tool_uses", "value": keep}, **fields}]}


def body(messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 50, "messages": messages, **fields}


THINKING = TEMPLATE.replace("{{ message['content']", "{{ message['reasoning_content'] }}|{{ message['content']")


@pytest.fixture
def backend(tokenizer: Tokenizer) -> FakeBackend:
    return FakeBackend(reply=[*tokenizer.encode("hello world").tolist(), EOS_ID], max_model_len=4096)


@pytest.fixture
async def client(backend: FakeBackend, model_files: ModelFiles) -> AsyncIterator[httpx.AsyncClient]:
    async with open_client(backend, model_files, tool_template="hermes") as client:
        yield client


@pytest.fixture
async def base_url(backend: FakeBackend, model_files: ModelFiles) -> AsyncIterator[str]:
    async with running(create_app(Settings(tool_template="hermes"), backend, model_files)) as port:
        yield f"http://127.0.0.1:{port}"


async def ask(client: httpx.AsyncClient, path: str, fields: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post(path, json=fields)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def sent_by(backend: FakeBackend, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(list(backend.requests[-1].token_ids))


def facts(text: str) -> list[int]:
    return [number for number in range(20) if f"fact {number}." in text]


async def test_old_uses_of_tools_are_cleared_for_one_that_asks(
    client: httpx.AsyncClient, backend: FakeBackend, tokenizer: Tokenizer
) -> None:
    await ask(client, MESSAGES, body(used(5)))
    assert facts(sent_by(backend, tokenizer)) == [0, 1, 2, 3, 4]
    told = await ask(client, MESSAGES, body(used(5), context_management=clearing()))
    sent = sent_by(backend, tokenizer)
    context = told["context_management"]
    assert context["input_tokens"] == len(backend.requests[-1].token_ids)
    [edit] = context["applied_edits"]
    assert edit["count"] == edit["cleared_tool_uses"] == 3
    assert context["original_input_tokens"] - context["input_tokens"] == edit["cleared_input_tokens"] > 0
    assert facts(sent) == [3, 4]  # four are more than three, and the fifth came later
    assert sent.count("[The result of search is no longer here") == 3
    assert sent.count('{"at":') == 5
    await ask(client, MESSAGES, body(used(5), context_management=clearing(clear_tool_inputs=True)))
    assert sent_by(backend, tokenizer).count('{"at":') == 2


async def test_what_is_counted_is_what_is_sent(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    asked = body(used(5), context_management=clearing())
    counted = await ask(client, COUNT, {name: value for name, value in asked.items() if name != "max_tokens"})
    await ask(client, MESSAGES, asked)
    cleared = len(backend.requests[-1].token_ids)
    await ask(client, MESSAGES, body(used(5)))
    whole = len(backend.requests[-1].token_ids)
    assert cleared < whole
    assert counted == {"input_tokens": cleared, "context_management": {"original_input_tokens": whole}}
    assert await ask(client, COUNT, {"model": "tiny", "messages": used(5)}) == {"input_tokens": whole}


async def test_policy_counts_what_it_sends(model_files: ModelFiles, backend: FakeBackend) -> None:
    async with open_client(backend, model_files, tool_template="hermes", context_policy="on") as client:
        counted = await ask(client, COUNT, {"model": "tiny", "messages": used(40)})
        await ask(client, MESSAGES, body(used(40), max_tokens=100_000))
    assert counted["input_tokens"] == len(backend.requests[-1].token_ids)
    assert counted["context_management"]["original_input_tokens"] > 4096


async def test_wishes_come_before_the_policy(model_files: ModelFiles, backend: FakeBackend) -> None:
    async with open_client(backend, model_files, tool_template="hermes", context_policy="on") as client:
        told = await ask(client, MESSAGES, body(used(12, num_words=120), context_management=clearing(keep=9, above=9)))
        context = told["context_management"]
        assert [edit["type"] for edit in context["applied_edits"]][:2] == [clearing()["edits"][0]["type"], "summarize"]
        left_out = sum(edit["cleared_input_tokens"] for edit in context["applied_edits"])
        assert left_out > 0
        assert context["original_input_tokens"] > context["input_tokens"] == len(backend.requests[-1].token_ids)


async def test_audit_is_for_those_that_wish_nothing(model_files: ModelFiles, backend: FakeBackend) -> None:
    backend.max_model_len = 16_384
    async with open_client(backend, model_files, tool_template="hermes", context_policy="audit") as client:
        assert "context_management" not in await ask(client, MESSAGES, body(used(5)))
        told = await ask(client, MESSAGES, body(used(5), context_management=clearing()))
        assert told["context_management"]["applied_edits"][0]["cleared_tool_uses"] == 3
        counted = await ask(client, COUNT, {"model": "tiny", "messages": used(5)})
        assert list(counted) == ["input_tokens"]


async def test_prompt_only_grows_between_two_clearings(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    backend.max_model_len = 65_536
    wanted = {"trigger": {"type": "input_tokens", "value": 2500}, "keep": {"type": "tool_uses", "value": 2}}
    kept, cuts = 0, list[int]()
    for number in range(1, 20):
        told = await ask(client, MESSAGES, body(used(number), context_management=edit(**wanted)))
        cleared = sum(entry["cleared_tool_uses"] for entry in told["context_management"]["applied_edits"])
        if not cuts or cleared != cuts[-1]:
            cuts.append(cleared)
        else:
            before, now = (list(request.token_ids) for request in backend.requests[-2:])
            begun = len(before) - NUM_OPENING_TOKENS
            assert now[:begun] == before[:begun]
            kept += 1
    assert len(cuts) > 2
    assert kept > len(cuts)


async def test_tokenize_gives_the_tokens_that_are_sent(model_files: ModelFiles, backend: FakeBackend) -> None:
    turns = [{"role": role, "content": words(200, at)} for at in range(20) for role in ("user", "assistant")]
    turns.append({"role": "user", "content": "and?"})
    async with open_client(backend, model_files, context_policy="on") as client:
        tokens = await ask(client, "/tokenize", {"messages": turns})
        await ask(client, "/v1/chat/completions", {"model": "tiny", "messages": turns})
    assert tokens["tokens"] == list(backend.requests[-1].token_ids)
    assert tokens["count"] < 4096


async def test_old_thoughts_are_cleared(tmp_path: Path, backend: FakeBackend, tokenizer: Tokenizer) -> None:
    def said(thought: str) -> dict[str, Any]:
        blocks = [{"type": "thinking", "thinking": thought, "signature": ""}, {"type": "text", "text": "said"}]
        return {"role": "assistant", "content": blocks}

    user = {"role": "user", "content": "hi"}
    chat = [user, said("one"), user, said("two"), user]
    edits = {"edits": [{"type": "clear_thinking_20251015"}]}
    async with open_client(backend, write_model(tmp_path, template=THINKING)) as client:
        for wanted, left in (({"edits": []}, (True, True)), (edits, (False, True))):
            await ask(client, MESSAGES, body(chat, context_management=wanted))
            sent = sent_by(backend, tokenizer)
            assert ("one|said" in sent, "two|said" in sent) == left


LONG = [{"role": role, "content": f"{words(150, at)} fact {at}."} for at in range(20) for role in ("user", "assistant")]
INPUT = [*LONG, {"role": "user", "content": "and?"}]


async def test_responses_cut_what_is_too_long_where_truncation_is_auto(
    client: httpx.AsyncClient, backend: FakeBackend
) -> None:
    refused = await client.post(RESPONSES, json={"model": "tiny", "input": INPUT})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    told = await ask(client, RESPONSES, {"model": "tiny", "input": INPUT, "truncation": "auto"})
    assert told["truncation"] == "auto"
    assert told["context_management"]["applied_edits"]
    assert len(backend.requests[-1].token_ids) < 4096
    short = await ask(client, RESPONSES, {"model": "tiny", "input": "hi", "truncation": "disabled"})
    assert short["truncation"] == "disabled"


async def test_compaction_cuts_above_its_threshold(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    backend.max_model_len = 16_384
    short = [*LONG[:8], INPUT[-1]]
    sizes = []
    for wanted in ({}, {"compact_threshold": None}, {"compact_threshold": 5000}, {"compact_threshold": 3000}):
        entries = [{"type": "compaction", **wanted}] if wanted else []
        await ask(client, RESPONSES, {"model": "tiny", "input": short, "context_management": entries})
        sizes.append(len(backend.requests[-1].token_ids))
    assert sizes[0] == sizes[1] > sizes[2] > sizes[3]
    compact = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 5000}}
    await ask(client, MESSAGES, body(short, context_management={"edits": [compact]}))
    assert len(backend.requests[-1].token_ids) == sizes[2]


async def test_anthropics_sdk_asks(base_url: str, backend: FakeBackend, tokenizer: Tokenizer) -> None:
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="ignored", max_retries=0) as client:
        wanted: Any = {**body(used(5)), "betas": BETAS, "context_management": clearing()}
        answer = await client.beta.messages.create(**wanted)
        assert answer.context_management is not None
        [edit] = answer.context_management.applied_edits
        assert isinstance(edit, BetaClearToolUses20250919EditResponse)
        assert (edit.cleared_tool_uses, edit.cleared_input_tokens > 0) == (3, True)
        async with client.beta.messages.stream(**wanted) as stream:
            final = await stream.get_final_message()
        assert final.context_management == answer.context_management
        assert facts(sent_by(backend, tokenizer)) == [3, 4]
        counted = await client.beta.messages.count_tokens(
            **{name: value for name, value in wanted.items() if name != "max_tokens"}
        )
        assert counted.context_management is not None
        assert counted.context_management.original_input_tokens > counted.input_tokens
        with pytest.raises(anthropic.BadRequestError, match=r"context_management.edits\[0\].keep.value: got -1"):
            await client.beta.messages.create(**{**wanted, "context_management": clearing(keep=-1)})


async def test_openais_sdk_asks(base_url: str, backend: FakeBackend) -> None:
    backend.max_model_len = 16_384
    asked: Any = {"model": "tiny", "input": [*LONG[:8], INPUT[-1]]}
    async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="ignored", max_retries=0) as client:
        answer = await client.responses.create(**asked, truncation="auto")
        assert answer.truncation == "auto"
        assert answer.to_dict()["context_management"]["applied_edits"] == []
        entry: Any = {"type": "compaction", "compact_threshold": 1000}
        await client.responses.create(**asked, context_management=[entry])
    whole, compacted = (len(request.token_ids) for request in backend.requests)
    assert compacted < whole


def edit(**fields: Any) -> dict[str, Any]:
    return {"edits": [{"type": "clear_tool_uses_20250919", **fields}]}


def tokens(value: object = 5) -> dict[str, Any]:
    return {"type": "input_tokens", "value": value}


COMPACT = {"type": "compact_20260112"}
BAD_EDITS: dict[str, tuple[object, str, str]] = {
    "list": ([], "", "an object"),
    "unknown": ({"edit": []}, ".edit", "one of edits"),
    "edits": ({"edits": {}}, ".edits", "an array"),
    "entry": ({"edits": ["clear"]}, ".edits[0]", "an object"),
    "type": ({"edits": [{"type": "clear_all"}]}, ".edits[0].type", "clear_tool_uses_20250919, clear_thinking_20251015"),
    "twice": ({"edits": [COMPACT, COMPACT]}, ".edits[1].type", "each type once"),
    "misspelled": (edit(clear_at_most=tokens()), ".edits[0].clear_at_most", "clear_at_least"),
    "trigger": (edit(trigger=5), ".edits[0].trigger", "an object"),
    "trigger-type": (edit(trigger={"type": "turns", "value": 5}), ".edits[0].trigger.type", "input_tokens, tool_uses"),
    "trigger-value": (edit(trigger=tokens(5.5)), ".edits[0].trigger.value", "a whole number"),
    "keep-tokens": (edit(keep=tokens()), ".edits[0].keep.type", "tool_uses"),
    "least": (edit(clear_at_least=tokens(-1)), ".edits[0].clear_at_least.value", "a whole number"),
    "exclude": (edit(exclude_tools="search"), ".edits[0].exclude_tools", "an array"),
    "exclude-number": (edit(exclude_tools=[5]), ".edits[0].exclude_tools[0]", "a string"),
    "inputs": (edit(clear_tool_inputs="search"), ".edits[0].clear_tool_inputs", "true, false or an array"),
    "thinking": ({"edits": [{"type": "clear_thinking_20251015", "keep": 5}]}, ".edits[0].keep", '"all" or'),
    "thinking-none": (
        {"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 0}}]},
        ".edits[0].keep.value",
        "from 1",
    ),
    "instructions": ({"edits": [{**COMPACT, "instructions": "x"}]}, ".edits[0].instructions", "left out"),
    "pause": ({"edits": [{**COMPACT, "pause_after_compaction": True}]}, ".edits[0].pause_after_compaction", "false"),
    "compact-low": ({"edits": [{**COMPACT, "trigger": tokens(999)}]}, ".edits[0].trigger.value", "from 1000"),
}


@pytest.mark.parametrize("parse", [parse_messages_request, parse_count_request])
@pytest.mark.parametrize(("wanted", "field", "words"), BAD_EDITS.values(), ids=BAD_EDITS)
def test_bad_edit_is_named(parse: Callable[[bytes], object], wanted: object, field: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(words)) as raised:
        parse(orjson.dumps(body(used(1), context_management=wanted)))
    assert str(raised.value).startswith(f"context_management{field}: got ")


BAD_RESPONSES: dict[str, tuple[dict[str, Any], str, str]] = {
    "truncation": ({"truncation": "first"}, "truncation", "auto, disabled"),
    "object": ({"context_management": {}}, "context_management", "an array"),
    "two": ({"context_management": [{"type": "compaction"}] * 2}, "context_management", "0 to 1"),
    "type": ({"context_management": [{"type": "clear"}]}, "context_management[0].type", "one of compaction"),
    "unknown": (
        {"context_management": [{"type": "compaction", "threshold": 5000}]},
        "context_management[0].threshold",
        "compact_threshold",
    ),
    "low": (
        {"context_management": [{"type": "compaction", "compact_threshold": 999}]},
        "context_management[0].compact_threshold",
        "from 1000",
    ),
}


@pytest.mark.parametrize(("fields", "field", "words"), BAD_RESPONSES.values(), ids=BAD_RESPONSES)
def test_bad_wish_of_a_responses_client_is_named(fields: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(words)) as raised:
        parse_responses_request(orjson.dumps({"model": "tiny", "input": "hi", **fields}))
    assert raised.value.param == field
    assert str(raised.value).startswith(f"{field}: got ")
