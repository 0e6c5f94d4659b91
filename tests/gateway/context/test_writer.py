"""A summary by the model: asked for with what is cached, once for each cut, and never in the way of the request."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from gateway.context.editor import ContextEditor
from gateway.context.fitted import Fitted
from gateway.context.policy import ContextPolicy
from gateway.context.summary import Lacks, Summary
from gateway.context.writer import Said, SummaryWriter
from gateway.conversation import Conversation, texts_of
from gateway.normalize.memory import TurnMemory
from tests.gateway.context.histories import HISTORIES, answer, call, count, history, user, words
from tests.gateway.context.test_plan import beginnings

ROOM = 4000
POLICY = ContextPolicy(summary="model", clear_at_least=100, document_tokens=300, keep_units=3)
LONG = history(*(part for n in range(30) for part in (user(words(80, n)), answer(words(80, n)))), user("and?"))
TEXT = "We spoke of amber and of basil, and agreed on cedar."


class Chat:
    """One gateway, a model that says what a test wants, and what came of it."""

    def __init__(self, said: Any = TEXT, **policy: Any) -> None:
        memory = TurnMemory()
        self.editor = ContextEditor(count, memory)
        self.fallbacks: list[str] = []
        self.writer = SummaryWriter(memory, self.fallbacks.append)
        self.policy = replace(POLICY, **policy)
        self.said = said
        self.asked: list[Conversation] = []
        self.aborted = 0
        self.go = asyncio.Event()
        self.go.set()

    async def ask(self, conversation: Conversation, max_tokens: int) -> Said:
        assert max_tokens > 0
        self.asked.append(conversation)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        if isinstance(self.said, Exception):
            raise self.said
        return self.said if isinstance(self.said, Said) else Said(self.said, is_cut=False)

    def begin(self, conversation: Conversation, scope: str = "t") -> Fitted | Lacks:
        return self.editor.begin(conversation, self.policy, ROOM, scope)

    async def send(self, conversation: Conversation, scope: str = "t") -> Fitted:
        begun = self.begin(conversation, scope)
        return begun if isinstance(begun, Fitted) else begun.finish(await self.writer.write(begun, self.ask))


def detail_of(fitted: Fitted) -> dict[str, str]:
    return dict(next(edit.detail for edit in fitted.edits if edit.kind == "summarize"))


def printed(conversation: Conversation) -> str:
    return "\n".join(text for message in conversation.messages for text in texts_of(message.content))


async def test_summary_is_the_models_and_every_later_request_has_it() -> None:
    chat = Chat()
    fitted = await chat.send(LONG)
    assert TEXT in printed(fitted.conversation)
    assert detail_of(fitted) == {"written_by": "model"}
    chat.said = "Something else this time, which would change what was sent."
    longer = replace(LONG, messages=(*LONG.messages, answer("so"), user("then?")))
    again = await chat.send(longer)
    assert again.conversation.messages[: len(fitted.conversation.messages)] == fitted.conversation.messages
    assert detail_of(again) == {"written_by": "model"}
    assert len(chat.asked) == 1
    await chat.send(LONG, "another tenant")
    assert len(chat.asked) == 2


FEW = settings(max_examples=25)


@FEW
@given(HISTORIES)
def test_model_is_asked_with_what_was_sent_before_and_its_answer(conversation: Conversation) -> None:
    async def replay() -> None:
        chat = Chat()
        before: Fitted | None = None
        for beginning in beginnings(conversation):
            lacks = chat.begin(beginning)
            fitted = await chat.send(beginning)
            if isinstance(lacks, Lacks):
                assert before is not None, "nothing to summarize was ever answered"
                *asked, instruction = chat.asked[-1].messages
                sent = before.conversation.messages
                if beginning.messages[-1].role == "user":
                    assert tuple(asked) == (*sent, beginning.messages[-2])
                else:  # the answer is a call whose results are not cached
                    assert tuple(asked) == sent[: len(asked)]
                    assert asked[-1].role != "user"
                assert instruction.role == "user"
                assert chat.asked[-1].tools == beginning.tools
            before = fitted

    asyncio.run(replay())


async def test_agent_is_asked_behind_whole_results() -> None:
    steps = [call(number, words(150, number)) for number in range(40)]
    chat = Chat(clear_at_least=100_000)
    await chat.send(history(user("Mend the clock."), *steps))
    *asked, _ = chat.asked[-1].messages
    assert asked[-1].role == "tool"


async def test_requests_of_the_same_chat_ask_once() -> None:
    chat = Chat()
    chat.go.clear()
    tasks = [asyncio.create_task(chat.send(LONG, scope)) for scope in ("t", "t", "another tenant")]
    await asyncio.sleep(0.01)
    chat.go.set()
    first, second, _ = await asyncio.gather(*tasks)
    assert len(chat.asked) == 2, "one for each tenant"
    assert first.conversation == second.conversation


async def test_client_that_goes_away_aborts_the_call_unless_another_waits() -> None:
    chat = Chat()
    chat.go.clear()
    first, second = (asyncio.create_task(chat.send(LONG)) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.sleep(0.01)
    assert chat.aborted == 0
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    await asyncio.sleep(0.01)
    assert chat.aborted == 1
    assert chat.fallbacks == []
    chat.go.set()
    assert detail_of(await chat.send(LONG)) == {"written_by": "model"}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (ValueError("the engine died"), "failed"),
        ("", "failed"),
        ("I agree. " * 60, "failed"),
        (Said("There was so much to say that it never came to an end", is_cut=True), "failed"),
        (TimeoutError(), "timed_out"),
    ],
)
async def test_quotes_stand_in_for_good_and_it_is_said(said: Any, reason: str) -> None:
    chat = Chat(said)
    fitted = await chat.send(LONG)
    assert detail_of(fitted) == {"written_by": "extractive", "fallback": reason}
    assert chat.fallbacks == [reason]
    quoted = ContextEditor(count, TurnMemory()).edit(LONG, replace(POLICY, summary="extractive"), ROOM, "t")
    assert fitted.conversation == quoted.conversation
    chat.said = TEXT
    again = await chat.send(LONG)
    assert again == fitted
    assert len(chat.asked) == 1
    assert chat.fallbacks == [reason]


async def test_model_that_takes_too_long_is_not_waited_for() -> None:
    chat = Chat(summary_timeout_seconds=0.01)
    chat.go.clear()
    fitted = await chat.send(LONG)
    assert detail_of(fitted) == {"written_by": "extractive", "fallback": "timed_out"}
    assert chat.aborted == 1


async def test_who_cannot_ask_gets_quotes_that_are_not_kept() -> None:
    chat = Chat()
    shown = chat.editor.edit(LONG, POLICY, ROOM, "t")
    assert detail_of(shown) == {"written_by": "extractive"}
    assert detail_of(await chat.send(LONG)) == {"written_by": "model"}


async def test_summary_that_is_too_long_ends_with_a_sentence() -> None:
    chat = Chat(" ".join(f"Point {number} is {words(7, number)}." for number in range(200)))
    lacks = chat.begin(LONG)
    assert isinstance(lacks, Lacks)
    summary: Summary = await chat.writer.write(lacks, chat.ask)
    assert summary.text.endswith(".")
    assert lacks.max_tokens / 2 < count(summary.text) <= lacks.max_tokens


@pytest.mark.parametrize("num_words", [1, 20])
async def test_passages_are_the_same_whether_tokens_were_counted_before_or_not(num_words: int) -> None:
    """They have the room that the summary leaves, and quotes leave another one."""
    long_question = "and what of amber? " + words(2100, 7)
    chat = history(*LONG.messages[:-1], user(long_question))
    sent = []
    for is_counted_before in (False, True):
        gateway = Chat(words(num_words, 3) + ".", document_tokens=10**6)
        if is_counted_before:
            gateway.editor.edit(chat, gateway.policy, ROOM, "t")
        sent.append((await gateway.send(chat)).conversation)
        assert gateway.asked
    assert sent[0] == sent[1]
