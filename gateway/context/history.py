"""A history as the policy sees it: its units, and what each part of it takes. All is measured once, when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import orjson

from gateway.context.documents import document_span
from gateway.context.lazy import Lazy
from gateway.context.units import Counter, Unit, borders_of, units_of
from gateway.conversation import Conversation, Message, texts_of

MESSAGE_TOKENS = 8
"""What a template writes around a message, about."""


class Place(NamedTuple):
    """A text of the history."""

    message: int
    """Index of its message."""
    text: int
    """Which of the texts of its content."""

    @property
    def document(self) -> str:
        """Its name, the same in every request of the chat."""
        return f"d{self.message}.{self.text}" if self.text else f"d{self.message}"


@dataclass(frozen=True, slots=True)
class Document:
    """A part of a text that can be left out, of which passages can be given."""

    place: Place
    start: int
    stop: int
    """In characters of the text."""
    num_tokens: int


class History:
    """One conversation, measured.

    Args:
        conversation: in canonical form.
        count: see `Counter`.
        document_tokens: a part of a text that takes more is a document.
    """

    def __init__(self, conversation: Conversation, count: Counter, *, document_tokens: int) -> None:
        self.conversation = conversation
        self.messages = conversation.messages
        self.num_head = conversation.num_head_messages
        self.borders: Sequence[int] = borders_of(self.messages, self.num_head)
        """Of the units, by their messages."""
        self.units: Sequence[Unit] = units_of(self.messages, self.borders)
        self._count = count
        self.document_tokens = document_tokens
        self.sizes: Sequence[int] = Lazy(len(self.messages), lambda index: self._size(self.messages[index]))
        """Tokens of each message, by estimate."""
        self._documents: dict[int, tuple[Document, ...]] = {}

    def is_of_user(self, unit: int) -> bool:
        """Whether a unit asks something."""
        return self.messages[self.borders[unit]].role == "user"

    @cached_property
    def head_tokens(self) -> int:
        """Of the system head and the tools, which nothing here changes."""
        tools = self.conversation.tools
        return sum(self.sizes[: self.num_head]) + (self._count(orjson.dumps(list(tools)).decode()) if tools else 0)

    @cached_property
    def results(self) -> Sequence[int]:
        """The messages of tools, in order."""
        return [index for index, message in enumerate(self.messages) if message.role == "tool"]

    @cached_property
    def tool_names(self) -> Mapping[int, str]:
        """By message of a tool, whose result it is; empty where no call has its id."""
        names: dict[str, str] = {}
        found: dict[int, str] = {}
        for index, message in enumerate(self.messages):
            if message.role == "tool":
                found[index] = names.get(str(message.fields.get("tool_call_id")), str(message.fields.get("name", "")))
                continue
            for call in message.fields.get("tool_calls") or ():
                names[str(call.get("id"))] = str((call.get("function") or {}).get("name", ""))
        return found

    def documents_of(self, index: int) -> Sequence[Document]:
        """Give the documents in a message: of a user or a tool, and long."""
        found = self._documents.get(index)
        if found is None:
            found = self._documents[index] = tuple(self._documents_of(index))
        return found

    def _documents_of(self, index: int) -> Iterator[Document]:
        message = self.messages[index]
        if message.role not in ("user", "tool") or self.sizes[index] <= self.document_tokens:
            return
        for number, text in enumerate(texts_of(message.content)):
            start, stop = document_span(text) if message.role == "user" else (0, len(text))
            size = self._count(text[start:stop])
            if size > self.document_tokens:
                yield Document(Place(index, number), start, stop, size)

    def _size(self, message: Message) -> int:
        texts = sum(map(self._count, texts_of(message.content)))
        calls = message.fields.get("tool_calls")
        return MESSAGE_TOKENS + texts + (self._count(orjson.dumps(calls).decode()) if calls else 0)
