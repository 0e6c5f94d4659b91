"""The one way from a chat to what is sent of it: how often what is tried, and where the work is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import httpx
import pytest

from gateway.context.asked import ContextAsked
from gateway.context.editor import ContextEditor
from gateway.context.shortening import LongChat, Prompt, Sender, shorten
from gateway.context.summary import Lacks, Summary
from gateway.conversation import Conversation
from gateway.errors import ContextLengthError
from gateway.model_files import ModelFiles
from gateway.normalize.memory import TurnMemory
from gateway.normalize.registry import Choice
from gateway.normalize.rule import Mode
from gateway.normalize.rules import built_in_rules
from tests.gateway.conftest import open_client
from tests.gateway.context.histories import count, words
from tests.gateway.context.test_writer import LONG, ROOM
from tests.gateway.support.fake_backend import FakeBackend

_T = TypeVar("_T")
RULES = built_in_rules().rule_set({"context_policy": Choice(Mode.ON, {"summary": "model"})})


class Refusing:
    """An engine for which every prompt is too long."""

    def __init__(self) -> None:
        self.attempts: list[tuple[int, bool]] = []
        self.num_summaries = 0

    async def run(self, work: Callable[[], _T], /) -> _T:
        return work()

    async def attempt(self, conversation: Conversation, /, *, is_last: bool) -> Prompt[None]:
        self.attempts.append((len(conversation.messages), is_last))
        raise ContextLengthError("too long", param="messages")

    async def summarize(self, lacks: Lacks) -> Summary:
        assert lacks.max_tokens > 0
        self.num_summaries += 1
        return Summary("We spoke of amber.", "model")


async def test_model_is_asked_once_however_often_a_chat_is_cut() -> None:
    engine = Refusing()
    chat = LongChat(LONG, ContextAsked(), RULES, "t", ROOM, 100)
    with pytest.raises(ContextLengthError, match="the context policy is on and left"):
        await shorten(chat, ContextEditor(count, TurnMemory()), Sender(engine.run, engine.attempt, engine.summarize))
    assert engine.num_summaries == 1
    assert [is_last for _, is_last in engine.attempts] == [False, False, True]
    assert sorted(engine.attempts, reverse=True) == engine.attempts


def is_on_the_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


TURNS = [
    {"role": role, "content": f"{number} {words(35, number)}"} for number in range(40) for role in ("user", "assistant")
]
HEADS = [{"role": "system", "content": words(1100, number)} for number in range(4)]


@pytest.mark.parametrize(
    ("path", "messages", "status"),
    [
        ("/v1/messages", TURNS, 200),
        ("/v1/messages/count_tokens", TURNS, 200),
        ("/v1/chat/completions", [*HEADS, {"role": "user", "content": "so?"}], 400),
    ],
)
async def test_texts_of_a_chat_are_never_counted_on_the_loop(
    monkeypatch: pytest.MonkeyPatch,
    backend: FakeBackend,
    model_files: ModelFiles,
    path: str,
    messages: list[dict[str, Any]],
    status: int,
) -> None:
    counted_on_the_loop: list[bool] = []
    original = ContextEditor.__init__

    def watched(editor: ContextEditor, count: Callable[[str], int], memory: TurnMemory) -> None:
        def watching(text: str) -> int:
            counted_on_the_loop.append(is_on_the_loop())
            return count(text)

        original(editor, watching, memory)

    monkeypatch.setattr(ContextEditor, "__init__", watched)
    backend.max_model_len = 2048
    wishes = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    body: dict[str, Any] = {"model": "tiny", "messages": messages}
    if path != "/v1/messages/count_tokens":
        body["max_tokens"] = 20
    if path != "/v1/chat/completions":
        body["context_management"] = wishes
    async with open_client(backend, model_files, context_policy="on") as client:
        answer: httpx.Response = await client.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert counted_on_the_loop
    assert not any(counted_on_the_loop)
