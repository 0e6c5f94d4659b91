from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from gateway.auth import Identity
from gateway.backends.base import BackendUnavailableError
from gateway.chat_request import parse_chat_request
from gateway.conversation import Conversation
from gateway.ingress import Ingress
from gateway.normalize.modes import RuleModes
from gateway.normalize.rules import built_in_rules
from gateway.prefix import PrefixHasher
from gateway.rendering import PromptRenderer, RenderedPrompt, WrittenPrompt
from gateway.template import ChatTemplate
from gateway.threads import LARGE_FROM_BYTES, THREAD_FROM_BYTES, TOKENIZING_WEIGHT, PromptThreads
from gateway.tokenizer import Tokenizer
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.tiny_model import TOOL_TEMPLATE


def thread_name() -> str:
    return threading.current_thread().name.rpartition("_")[0]


@pytest.mark.parametrize(
    ("num_bytes", "name"),
    [
        (THREAD_FROM_BYTES - 1, ""),
        (THREAD_FROM_BYTES, "prompts"),
        (LARGE_FROM_BYTES - 1, "prompts"),
        (LARGE_FROM_BYTES, "large-prompts"),
    ],
)
async def test_size_decides_the_thread(num_bytes: int, name: str) -> None:
    threads = PromptThreads()
    assert await threads.run(num_bytes, thread_name) == name
    threads.close()


async def test_large_prompts_hold_up_only_each_other_and_leave_when_their_client_does() -> None:
    threads, gate, ran = PromptThreads(), threading.Event(), []
    large = [asyncio.create_task(threads.run(LARGE_FROM_BYTES, gate.wait, 20)) for _ in range(3)]
    gone = asyncio.create_task(threads.run(LARGE_FROM_BYTES, ran.append, "gone"))
    await asyncio.sleep(0)
    assert await asyncio.wait_for(threads.run(THREAD_FROM_BYTES, thread_name), 20) == "prompts"
    gone.cancel()
    await asyncio.sleep(0)
    gate.set()
    assert await asyncio.gather(*large) == [True] * 3
    assert ran == []
    threads.close()


async def test_more_waiting_bytes_than_the_limit_are_refused_and_one_alone_never() -> None:
    threads, gate = PromptThreads(max_waiting_bytes=50_000), threading.Event()
    first = asyncio.create_task(threads.run(100_000, gate.wait, 20))
    await asyncio.sleep(0)
    with pytest.raises(BackendUnavailableError):
        await threads.run(THREAD_FROM_BYTES, thread_name)
    assert await threads.run(THREAD_FROM_BYTES - 1, thread_name) == ""
    gate.set()
    await first
    assert await threads.run(THREAD_FROM_BYTES, thread_name) == "prompts"
    threads.close()


class NamingRenderer(PromptRenderer):
    written_in = tokenized_in = ""

    def write(self, conversation: Conversation, **_: object) -> WrittenPrompt:  # type: ignore[override]
        self.written_in = thread_name()
        return super().write(conversation)

    def tokenize(self, written: WrittenPrompt, **options: Any) -> RenderedPrompt:
        self.tokenized_in = thread_name()
        return super().tokenize(written, **options)


CALLS = "{% for message in messages %}{% for call in message['tool_calls'] or [] %}{{ call | tojson }}{% endfor %}{% endfor %}"
LONG = "a" * THREAD_FROM_BYTES
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps({"text": LONG})}}
TOOL = {"type": "function", "function": {"name": "f", "description": LONG}}


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": LONG}]},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [CALL]}]},
        {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]},
        {"messages": [{"role": "user", "content": "hi", "name": "me", "what": [LONG]}]},
    ],
    ids=["content", "tool-calls", "tools", "unknown"],
)
async def test_whatever_makes_a_body_long_is_prepared_in_a_thread(
    tokenizer: Tokenizer, backend: FakeBackend, fields: dict[str, object]
) -> None:
    backend.max_model_len = 10**6
    renderer = NamingRenderer(ChatTemplate(CALLS + TOOL_TEMPLATE, special_tokens={}), tokenizer)
    await prepare(renderer, backend, fields)
    assert (renderer.written_in, renderer.tokenized_in) == ("prompts", "prompts")


async def test_much_new_text_is_tokenized_in_a_thread_and_text_that_is_known_is_not(
    tokenizer: Tokenizer, backend: FakeBackend
) -> None:
    backend.max_model_len = 10**6
    renderer = NamingRenderer(ChatTemplate(TOOL_TEMPLATE, special_tokens={"stop": "<|stop|>"}), tokenizer)
    seen_in = []
    for _ in range(2):
        content = "a" * (THREAD_FROM_BYTES // TOKENIZING_WEIGHT)
        await prepare(renderer, backend, {"messages": [{"role": "user", "content": content}]})
        seen_in.append((renderer.written_in, renderer.tokenized_in))
    assert seen_in == [("", "prompts"), ("", "")]


async def prepare(renderer: PromptRenderer, backend: FakeBackend, fields: dict[str, object]) -> None:
    ingress = Ingress(RuleModes(built_in_rules()), renderer, PrefixHasher(), PromptThreads())
    chat = parse_chat_request(json.dumps({"model": "tiny", **fields}).encode())
    await ingress.prepare("1", chat, route="/", identity=Identity("a"), model=backend.model_info())
