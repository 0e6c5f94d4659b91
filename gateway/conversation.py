"""A chat in neutral form: what every endpoint parses its body into, and what the rules and the template read.

Its parts are the *regions* that later own the prompt's tokens: the system head (the leading run of system messages),
each tool, each message. Text is kept as it came; fields that nobody knows are kept too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Content = str | tuple[str, ...] | None
"""One text, several text parts, or nothing (an assistant turn that only calls tools)."""

_SYSTEM_ROLES = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True)
class Message:
    """One turn."""

    role: str
    """`system`, `developer`, `user`, `assistant` or `tool`."""
    content: Content
    fields: Mapping[str, Any] = field(default_factory=dict)
    """All other fields, in the order they came: name, tool_calls, tool_call_id, and what nobody knows."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is said, and the tools that may be called."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()

    @property
    def num_head_messages(self) -> int:
        """Length of the leading run of system messages; a later one is a turn like any other."""
        for index, message in enumerate(self.messages):
            if message.role not in _SYSTEM_ROLES:
                return index
        return len(self.messages)
