"""Thoughts of old turns that a client wants cleared."""

from __future__ import annotations

import pytest

from gateway.context.thoughts import clear_thoughts
from gateway.conversation import Conversation, Message
from tests.gateway.context.histories import answer, call, count, history, user


def thought(text: str) -> Message:
    return Message("assistant", "said", {"reasoning_content": text})


def thoughts(conversation: Conversation) -> list[str | None]:
    return [message.fields.get("reasoning_content") for message in conversation.messages if message.role == "assistant"]


CHAT = history(
    user("a"),
    thought("one " * 9),
    call(0, "x"),
    thought("two"),
    user("b"),
    answer("none"),
    user("c"),
    thought("three"),
    user("d"),
)


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        (1, [None, None, None, None, "three"]),
        (2, ["one " * 9, None, "two", None, "three"]),
        (5, ["one " * 9, None, "two", None, "three"]),
    ],
)
def test_last_turns_keep_theirs(keep: int, left: list[str | None]) -> None:
    cleared = clear_thoughts(CHAT, keep, count)
    assert thoughts(cleared.conversation) == left
    assert [(edit.kind, edit.number) for edit in cleared.edits] == (
        [("clear_thinking_20251015", 1)] if keep == 1 else []
    )
    assert (cleared.conversation is CHAT) is (keep != 1)
    assert (cleared.num_tokens > 0) is (keep == 1)


def test_clearing_is_new_where_a_turn_begins_to_think() -> None:
    messages = CHAT.messages
    is_new = [
        clear_thoughts(Conversation(messages[:stop]), 1, count).is_new
        for stop in range(2, len(messages) + 1)
        if messages[stop - 1].role in ("user", "tool")
    ]
    assert is_new == [False, False, False, False, True]
    later = Conversation((*messages, answer("no thought"), user("e")))
    assert not clear_thoughts(later, 1, count).is_new
    first, second = (
        Message("assistant", None, {**thought("more").fields, **use.fields}) for use, _ in (call(1, ""), call(2, ""))
    )
    begun = (*messages, first, call(1, "x")[1])
    assert clear_thoughts(Conversation(begun), 1, count).is_new
    assert not clear_thoughts(Conversation((*begun, second, call(2, "x")[1])), 1, count).is_new
