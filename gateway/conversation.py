"""A chat in neutral form: what every endpoint parses its body into, and what the rules and the template read.

Its parts are the *regions* that later own the prompt's tokens: the system head (the leading run of system messages),
each tool, each message. Text is kept as it came; fields that nobody knows are kept too, at every level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Part = Mapping[str, Any]
"""One part of a content as it came: `{"type": "text", "text": …}`, an image, or a kind that nobody knows."""

Content = str | tuple[Part, ...] | None
"""One text, several parts, or nothing (an assistant turn that only calls tools)."""

SYSTEM_ROLES = frozenset({"system", "developer"})


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
    fields: Mapping[str, Any] = field(default_factory=dict)
    """All other fields of the body, in the order they came: model, response_format, chat_template_kwargs …"""

    @property
    def num_head_messages(self) -> int:
        """Length of the leading run of system messages; a later one is a turn like any other."""
        for index, message in enumerate(self.messages):
            if message.role not in SYSTEM_ROLES:
                return index
        return len(self.messages)


def with_one_head_message(conversation: Conversation) -> Conversation:
    """Write the leading run of system messages as one, in parts."""
    count = conversation.num_head_messages
    if count < 2:
        return conversation
    head, turns = conversation.messages[:count], conversation.messages[count:]
    parts = tuple(part for message in head for part in _parts(message.content))
    return replace(conversation, messages=(replace(head[0], content=parts), *turns))


def text_part(text: str) -> Part:
    """Write a text as a part."""
    return {"type": "text", "text": text}


def texts_of(content: Content) -> list[str]:
    """Return the texts of a content in order; other parts have none."""
    if content is None:
        return []
    return [content] if isinstance(content, str) else [part["text"] for part in content if part["type"] == "text"]


def map_texts(content: Content, change: Callable[[str], str]) -> Content:
    """Change every text of a content and nothing else."""
    if content is None or isinstance(content, str):
        return None if content is None else change(content)
    return tuple({**part, "text": change(part["text"])} if part["type"] == "text" else part for part in content)


def body_of(conversation: Conversation) -> dict[str, Any]:
    """Print a conversation as a chat body, in the order in which it is forwarded."""
    body: dict[str, Any] = {"model": conversation.fields["model"]} if "model" in conversation.fields else {}
    body["messages"] = [
        {"role": message.role, "content": _printed(message.content), **message.fields}
        for message in conversation.messages
    ]
    if conversation.tools:
        body["tools"] = list(conversation.tools)
    return body | {name: value for name, value in conversation.fields.items() if name != "model"}


def _parts(content: Content) -> tuple[Part, ...]:
    return (text_part(content),) if isinstance(content, str) else content or ()


def _printed(content: Content) -> Any:
    return list(content) if isinstance(content, tuple) else content
