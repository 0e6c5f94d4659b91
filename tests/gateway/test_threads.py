from __future__ import annotations

import asyncio
import json
import threading

import pytest

from gateway.auth import Identity
from gateway.backends.base import BackendUnavailableError
from gateway.chat_request import parse_chat_request
from gateway.conversation import Conversation, Message
from gateway.ingress import Ingress
from gateway.normalize.modes import RuleModes
from gateway.normalize.rules import built_in_rules
from gateway.prefix import PrefixHasher
from gateway.rendering import PromptRenderer, RenderedPrompt
from gateway.template import ChatTemplate
from gateway.threads import LARGE_FROM_BYTES, THREAD_FROM_BYTES, PromptThreads
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
    threads, gate = PromptThreads(max_waiting_bytes=10_000), threading.Event()
    first = asyncio.create_task(threads.run(20_000, gate.wait, 20))
    await asyncio.sleep(0)
    with pytest.raises(BackendUnavailableError):
        await threads.run(THREAD_FROM_BYTES, thread_name)
    assert await threads.run(THREAD_FROM_BYTES - 1, thread_name) == ""
    gate.set()
    await first
    assert await threads.run(THREAD_FROM_BYTES, thread_name) == "prompts"
    threads.close()


class NamingRenderer(PromptRenderer):
    name = ""

    def render(self, conversation: Conversation, **_: object) -> RenderedPrompt:  # type: ignore[override]
        self.name = thread_name()
        return super().render(Conversation((Message("user", "hi"),)))


ARGUMENTS = json.dumps({"text": "a" * 5000})
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": ARGUMENTS}}
TOOL = {"type": "function", "function": {"name": "f", "description": "a" * 5000}}


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "a" * 5000}]},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [CALL]}]},
        {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]},
        {"messages": [{"role": "user", "content": "hi", "name": "me", "what": ["a"] * 5000}]},
    ],
    ids=["content", "tool-calls", "tools", "unknown"],
)
async def test_whatever_makes_a_body_long_is_prepared_in_a_thread(
    tokenizer: Tokenizer, backend: FakeBackend, fields: dict[str, object]
) -> None:
    renderer = NamingRenderer(ChatTemplate(TOOL_TEMPLATE, special_tokens={}), tokenizer)
    ingress = Ingress(RuleModes(built_in_rules()), renderer, PrefixHasher(), PromptThreads())
    chat = parse_chat_request(json.dumps({"model": "tiny", **fields}).encode())
    await ingress.prepare("1", chat, route="/", identity=Identity("a"), model=backend.model_info())
    assert renderer.name == "prompts"
