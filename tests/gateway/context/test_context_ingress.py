"""Long and odd chats through the whole gateway with the policy on: an answer, or a 400 that says what to do."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.model_files import ModelFiles
from gateway.tokenizer import Tokenizer
from tests.gateway.conftest import open_client
from tests.gateway.context.test_fitting import ALTERNATING
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.tiny_model import EOS_ID, write_model

PATH = "/v1/chat/completions"
WINDOW = 2048
PARAGRAPH = "\n\n"
LINE = "the quick brown fox jumps over the lazy dog and says hello to the world. "
TEMPLATE = """\
{% for message in messages %}<|turn|>{{ message['role'] }}
{{ message['content'] }}{% for call in message.tool_calls %}{{ call.function | tojson }}{% endfor %}<|stop|>
{% endfor %}{% if add_generation_prompt %}<|turn|>assistant
{% endif %}"""
Messages = list[dict[str, Any]]


@pytest.fixture(scope="module")
def calling_files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return write_model(tmp_path_factory.mktemp("calling"), template=TEMPLATE)


@pytest.fixture
async def client(backend: FakeBackend, calling_files: ModelFiles) -> AsyncIterator[httpx.AsyncClient]:
    backend.max_model_len = WINDOW
    async with open_client(backend, calling_files, context_policy="on") as client:
        yield client


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def said(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def called(result: Any, number: int = 0) -> Messages:
    call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": result},
    ]


def turns(number: int, text: str = LINE * 4) -> Messages:
    return [message for turn in range(number) for message in (user(f"{turn} {text}"), said(f"{turn} {text}"))]


async def send(client: httpx.AsyncClient, messages: Messages, **fields: Any) -> httpx.Response:
    return await client.post(PATH, json={"model": "tiny", "messages": messages, "max_tokens": 50, **fields})


def prompt_of(backend: FakeBackend, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(backend.requests[-1].token_ids.tolist())


QUESTION = "Where is the fox?"
CUT: dict[str, Messages] = {
    "document": [user(f"Read this.\n\n{(LINE * 9 + PARAGRAPH) * 60}{QUESTION}")],
    "one-paragraph": [user(f"Read this. {LINE * 500}{QUESTION}")],
    "no-sentence": [user(f"Read {'fox dog ' * 9000} {QUESTION}")],
    "one-word-and-question": [user(f"{'x' * 100_000}\n{QUESTION}")],
    "code": [user("Mend it:\n```py\n" + "go(dog)\n\n" * 3000 + f"```\n{QUESTION}")],
    "parts": [user([{"type": "text", "text": LINE * 400}, {"type": "text", "text": QUESTION}])],
    "chinese": [user("请读这个。\n\n" + "我们昨天开会讨论了北门的计划。" * 500 + f"\n\n{QUESTION}")],
    "binary": [user("\n".join(["\x00\x01\x02\x7f\ufffd\u202e\u0301"] * 900) + f"\n\n{QUESTION}")],
    "results-of-nothing": [{"role": "tool", "tool_call_id": "c", "content": LINE * 200}, user(QUESTION)],
    "result-of-a-lost-call": [*turns(20), {"role": "tool", "tool_call_id": "lost", "content": "so"}],
    "one-long-result": [user(QUESTION), *called(LINE * 900)],
    "many-results": [user(QUESTION), *(one for number in range(80) for one in called(LINE * 4, number))],
    "many-users": [user(LINE * 2) for _ in range(200)],
    "many-assistants": [said(LINE * 2) for _ in range(200)],
    "system-in-the-middle": [*turns(20), {"role": "system", "content": "Be brief."}, user(QUESTION)],
    "begun-answer": [*turns(20), user(QUESTION), said("The fox")],
    "empty-texts": [*turns(20), user(""), said(""), said(None), user([{"type": "text", "text": ""}])],
}


@pytest.mark.parametrize("name", CUT)
async def test_long_chat_is_answered(client: httpx.AsyncClient, backend: FakeBackend, name: str) -> None:
    answer = await send(client, CUT[name])
    assert answer.status_code == 200, answer.text
    told = answer.json()["context_management"]
    assert told["applied_edits"]
    assert told["input_tokens"] == len(backend.requests[-1].token_ids) < WINDOW - 50
    edits = [edit["cleared_input_tokens"] for edit in told["applied_edits"]]
    assert sum(edits) == told["original_input_tokens"] - told["input_tokens"]


@pytest.mark.parametrize("name", [name for name, messages in CUT.items() if QUESTION in str(messages[-1])])
async def test_question_is_sent_whole(
    client: httpx.AsyncClient, backend: FakeBackend, tokenizer: Tokenizer, name: str
) -> None:
    await send(client, CUT[name])
    assert prompt_of(backend, tokenizer).count(QUESTION) == 1


@pytest.mark.slow
async def test_ten_thousand_turns_are_answered(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    answer = await send(client, [*turns(10_000, "hi"), user(QUESTION)])
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["prompt_tokens"] < WINDOW - 50


SHORT: dict[str, Messages] = {
    "system-alone": [{"role": "system", "content": "Be brief."}],
    "results-alone": [{"role": "tool", "tool_call_id": "c", "content": "so"}],
    "nothing-said": [user("")],
    "no-content": [said(None)],
}


@pytest.mark.parametrize("name", SHORT)
async def test_short_chat_is_sent_as_it_is(client: httpx.AsyncClient, name: str) -> None:
    answer = await send(client, SHORT[name])
    assert answer.status_code == 200, answer.text
    assert answer.json()["context_management"]["applied_edits"] == []


RESULTS: Messages = [{"role": "tool", "tool_call_id": "c", "content": LINE * 9} for _ in range(60)]
TOO_LONG: dict[str, tuple[Messages, dict[str, Any], str]] = {
    "one-word": ([user("x" * 1_000_000)], {}, r"messages: got a prompt of 1000040 characters, wanted at most \d+: "),
    "system": ([{"role": "system", "content": LINE * 200}, *turns(9)], {}, r"messages: got .* here about 3\d\d\d,"),
    "code-alone": ([user("```\n" + "go(fox)\n" * 3000 + "```")], {}, r"has about \d+$"),
    "results-alone": (RESULTS, {}, r"messages: got a prompt of \d+ tokens, wanted at most 2047: "),
    "max-tokens": (turns(9), {"max_tokens": 5000}, "max_tokens: got 5000, wanted at most"),
}


@pytest.mark.parametrize("name", TOO_LONG)
async def test_what_cannot_be_cut_is_refused_with_the_numbers(client: httpx.AsyncClient, name: str) -> None:
    messages, fields, pattern = TOO_LONG[name]
    answer = await send(client, messages, **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert re.search(pattern, error["message"]), error["message"]
    assert re.search(r"the context policy is on and left about \d+ of \d+ tokens", error["message"])


async def test_refusal_without_the_policy_names_it(backend: FakeBackend, calling_files: ModelFiles) -> None:
    async with open_client(backend, calling_files) as client:
        answer = await send(client, turns(90))
    assert answer.status_code == 400
    assert "--context-policy" in answer.json()["error"]["message"]


async def test_several_answers_and_streams_come_of_the_same_prompt(
    client: httpx.AsyncClient, backend: FakeBackend
) -> None:
    messages = [*turns(20), user(QUESTION)]
    several = await send(client, messages, n=2)
    streamed = await send(client, messages, stream=True)
    assert len(several.json()["choices"]) == 2
    assert streamed.text.endswith("data: [DONE]\n\n")
    first, second = (request.token_ids.tolist() for request in backend.requests)
    assert first == second


async def test_strict_template_takes_what_is_cut(
    backend: FakeBackend, tmp_path_factory: pytest.TempPathFactory
) -> None:
    files = write_model(tmp_path_factory.mktemp("strict"), template=ALTERNATING)
    backend.max_model_len = WINDOW
    agent = [message for number in range(9) for message in (user(LINE), *called(LINE * 9, number), said(LINE))]
    async with open_client(backend, files, context_policy="on") as client:
        for stop in range(len(agent)):
            if agent[stop]["role"] in ("user", "tool"):
                answer = await send(client, agent[: stop + 1])
                assert answer.status_code == 200, answer.text
    assert answer.json()["context_management"]["applied_edits"]


async def test_tokens_of_answers_are_given_back_where_a_chat_is_cut(
    client: httpx.AsyncClient, backend: FakeBackend, tokenizer: Tokenizer
) -> None:
    odd = [token for letter in "hello world" for token in tokenizer.encode(letter).tolist()]
    assert len(odd) > len(tokenizer.encode("hello world"))
    backend.reply = [*odd, EOS_ID]
    messages: Messages = []
    for turn in range(30):
        messages.append(user(f"{turn} {LINE * 4}"))
        answer = await send(client, messages)
        messages.append(answer.json()["choices"][0]["message"])
    told = answer.json()["context_management"]
    assert told["applied_edits"]
    sent = backend.requests[-1].token_ids.tolist()
    num_given_back = sum(sent[start : start + len(odd)] == odd for start in range(len(sent)))
    assert num_given_back == prompt_of(backend, tokenizer).count("assistant\nhello world") > 1
