"""Histories to cut: chats, agents' loops, documents."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from gateway.context.history import History
from gateway.context.units import is_request_point
from gateway.conversation import Conversation, Message

HEAD = Message("system", "You are of help.")
TOOLS = ({"type": "function", "function": {"name": "search", "description": "finds"}},)


def count(text: str) -> int:
    """A token for four characters, as of English text."""
    return -(-len(text) // 4)


def words(number: int, seed: int = 0) -> str:
    """So many words, a little more than one token each."""
    source = random.Random(seed)
    return " ".join(source.choice(("amber", "basil", "cedar", "delta", "ember", "fjord")) for _ in range(number))


def user(text: str) -> Message:
    """A question."""
    return Message("user", text)


def answer(text: str) -> Message:
    """What the model said."""
    return Message("assistant", text)


def call(number: int, result: str, tool: str = "search") -> list[Message]:
    """A call of a tool, and what came of it."""
    calls = [{"id": f"call_{number}", "type": "function", "function": {"name": tool, "arguments": "{}"}}]
    return [
        Message("assistant", None, {"tool_calls": calls}),
        Message("tool", result, {"tool_call_id": f"call_{number}"}),
    ]


def history(*turns: Message | Sequence[Message], **fields: Any) -> Conversation:
    """Put turns behind the head."""
    messages = [message for turn in turns for message in ([turn] if isinstance(turn, Message) else turn)]
    return Conversation((HEAD, *messages), TOOLS, fields)


_TEXTS = st.builds(words, st.integers(1, 400), st.integers(0, 5))
_ROUNDS = st.builds(
    lambda question, results, said: [
        user(question),
        *(message for number, result in enumerate(results) for message in call(number, result)),
        answer(said),
    ],
    _TEXTS,
    st.lists(_TEXTS, max_size=3),
    _TEXTS,
)
HISTORIES = st.builds(
    lambda rounds, last: history(*rounds, user(last)), st.lists(_ROUNDS, min_size=1, max_size=12), _TEXTS
)
"""Chats with calls of tools; each ends with a question."""


def beginnings(conversation: Conversation) -> list[Conversation]:
    """Every request that a client sent on the way to this history."""
    units = History(conversation, count, document_tokens=300).units
    stops = [unit.start + len(unit.messages) for index, unit in enumerate(units) if is_request_point(units, index)]
    return [replace(conversation, messages=conversation.messages[:stop]) for stop in stops]
