"""The editor: with memory, without it, with too little of it and from two threads at once it sends the same."""

from __future__ import annotations

from hypothesis import given, settings

from gateway.context.editor import ContextEditor
from gateway.context.fitting import Fitted
from gateway.context.policy import ContextPolicy
from gateway.conversation import Conversation
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
