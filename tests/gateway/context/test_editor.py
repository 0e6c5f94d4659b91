"""The editor: with memory, without it, with too little of it and from two threads at once it sends the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from hypothesis import given, settings

from gateway.context.archives import Archives
from gateway.context.editor import ContextEditor
from gateway.context.fitted import Fitted
from gateway.context.policy import ContextPolicy
from gateway.conversation import Conversation, Message
from gateway.normalize.memory import TurnMemory
from tests.gateway.context.histories import HISTORIES, answer, beginnings, count, history, user, words

ROOM = 4000
POLICY = ContextPolicy(clear_at_least=100, document_tokens=300, keep_units=3)
TINY = 40_000
"""Bytes of memory in which a few entries fit."""


def editor(max_bytes: int = 1 << 24) -> ContextEditor:
    return ContextEditor(count, TurnMemory(max_bytes=max_bytes))


def fit(of: ContextEditor, conversation: Conversation) -> Fitted:
    return of.edit(conversation, POLICY, ROOM, "a")


@settings(max_examples=10)
@given(HISTORIES)
def test_memory_changes_nothing_whatever_is_forgotten(conversation: Conversation) -> None:
    warm, tiny = editor(), editor(TINY)
    for beginning in beginnings(conversation):
        cold = fit(editor(), beginning)
        assert fit(warm, beginning) == cold
        assert fit(tiny, beginning) == cold


def test_cut_is_new_at_the_request_that_made_it() -> None:
    turns = [message for number in range(20) for message in (user(words(150, number)), answer(words(150, number)))]
    warm, seen = editor(), list[tuple[int, bool]]()
    for beginning in beginnings(history(*turns, user("and?"))):
        fitted = fit(warm, beginning)
        seen.append((fitted.plan.cut_at, fitted.is_new_cut))
    is_new = [cut_at != before for (cut_at, _), (before, _) in zip(seen[1:], seen, strict=False)]
    assert [new for _, new in seen[1:]] == is_new
    assert any(is_new)
    assert not all(is_new)


def calls(*results: str) -> list[Message]:
    """One answer with several calls, and the results that came so far."""
    names = range(2)
    made = [{"id": f"c{n}", "type": "function", "function": {"name": "search", "arguments": "{}"}} for n in names]
    told = [Message("tool", text, {"tool_call_id": f"c{n}"}) for n, text in enumerate(results)]
    return [Message("assistant", None, {"tool_calls": made}), *told]


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param((user(words(1500)), user(words(1500))), id="user-goes-on"),
        pytest.param((*calls(words(1500), words(1500)), answer("so"), user("and?")), id="second-result-comes-later"),
        pytest.param((answer(words(1500)), user(words(1500)), answer("so"), user("and?")), id="answer-is-continued"),
    ],
)
def test_request_that_ended_where_no_answer_comes_leaves_nothing_behind(ends: tuple[Message, ...]) -> None:
    """There it may have been cut, where whoever sees the longer history would not cut."""
    begun = (user(words(1000)), answer(words(1000)), user(words(500)))
    warm = editor()
    for number in range(len(ends) + 1):
        conversation = history(*begun, *ends[:number])
        assert fit(warm, conversation) == fit(editor(), conversation)


def test_beginning_of_an_answer_that_another_one_follows_leaves_nothing_behind() -> None:
    turns = (user(words(1800)), answer(words(600)), answer("so"), user("and?"))
    warm, before = editor(), tuple[Message, ...]()
    for number in range(1, len(turns) + 1):
        conversation = history(*turns[:number])
        fitted = fit(warm, conversation)
        assert fitted == fit(editor(), conversation)
        sent = fitted.conversation.messages
        assert fitted.is_new_cut or sent[: len(before)] == before
        before = sent
    assert fitted.is_new_cut


def test_what_was_planned_is_not_planned_again() -> None:
    counted = list[str]()

    def noting(text: str) -> int:
        counted.append(text)
        return count(text)

    noticing = ContextEditor(noting, TurnMemory())
    turns = [message for number in range(20) for message in (user(words(30, number)), answer(words(30, number)))]
    noticing.edit(history(*turns, user("and?")), POLICY, ROOM, "a")
    counted.clear()
    noticing.edit(history(*turns, user("and?"), answer("so"), user("what?")), POLICY, ROOM, "a")
    assert counted[-2:] == ["so", "what?"]
    assert not any("amber" in text for text in counted)


def test_scopes_share_nothing() -> None:
    memory = TurnMemory()
    shared, conversation = ContextEditor(count, memory), history(user(words(5000)), answer("so"), user("and?"))
    fit(shared, conversation)
    num_entries = memory.num_entries
    shared.edit(conversation, POLICY, ROOM, "b")
    assert memory.num_entries == 2 * num_entries


def test_two_threads_with_one_chat_send_the_same() -> None:
    turns = [message for number in range(30) for message in (user(words(150, number)), answer(words(150, number)))]
    requests = beginnings(history(*turns, user("and?")))
    expected = [fit(editor(), conversation) for conversation in requests]
    shared, gate = editor(200_000), Barrier(4)

    def client(_: int) -> list[Fitted]:
        fitted = []
        for conversation in requests:
            gate.wait()
            fitted.append(fit(shared, conversation))
        return fitted

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(client, range(4))) == [expected] * 4


def test_archives_are_bounded_and_found_again() -> None:
    archives, made = Archives(max_bytes=80_000), list[int]()

    def documents(number: int) -> list[tuple[str, str]]:
        made.append(number)
        return [("d1", words(100, number))]

    def ask(number: int, scope: str = "a") -> object:
        return archives.of(scope, bytes([number]), lambda: documents(number))

    assert ask(0) is ask(0)
    assert ask(0, "b") is not ask(0)
    assert made == [0, 0], "another scope has its own, and keeps it when this one asks for many"
    for number in range(40):
        ask(number)
        assert archives.num_bytes <= 80_000
    assert ask(39) is ask(39)
    assert ask(0, "b") is ask(0, "b")
    ask(0, "b")
    assert made == [0, 0, *range(1, 40)]
    made.clear()
    ask(0)
    archives.of("a", b"large", lambda: [("d1", words(1_000))])
    ask(39)
    assert made == [0]
    assert archives.num_bytes <= 80_000
