"""A history as the policy sees it: its units, and what each part of it takes. All is measured once, when it is asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import orjson

from gateway.context.compression import WHOLE, Result, Shorten, Shortened, whole
from gateway.context.documents import asked_in, document_span
from gateway.context.lazy import Lazy
from gateway.context.units import Counter, Unit, borders_of, units_of
from gateway.conversation import Content, Conversation, Message, text_part, texts_of

MESSAGE_TOKENS = 8
"""What a template writes around a message, about."""
_DOCUMENTED = ("user", "tool")
"""Roles whose long texts are documents."""


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


class _Call(NamedTuple):
    tool: str
    arguments: str
    question: int | None
    """The message of a user before it."""


class History:
    """One conversation, measured.

    Args:
        conversation: in canonical form.
        count: see `Counter`.
        document_tokens: a part of a text that takes more is a document.
        shorten: long results of tools.
        exclude_tools: their results are never shortened, nor are errors.
    """

    def __init__(
        self,
        conversation: Conversation,
        count: Counter,
        *,
        document_tokens: int,
        shorten: Shorten = whole,
        exclude_tools: Collection[str] = (),
    ) -> None:
        self.conversation = conversation
        self.messages = conversation.messages
        self.num_head = conversation.num_head_messages
        self.borders: Sequence[int] = borders_of(self.messages, self.num_head)
        """Of the units, by their messages."""
        self.units: Sequence[Unit] = units_of(self.messages, self.borders)
        self._count = count
        self.document_tokens = document_tokens
        came = Lazy(len(self.messages), self._size)
        self.sizes_as_they_came: Sequence[int] = came
        """Tokens of each message, by estimate."""
        self._shorten = shorten
        self._exclude_tools = exclude_tools
        self.shortened: Sequence[Shortened] = Lazy(len(self.messages), self._shortened)
        """What is sent of each message from the beginning."""
        self.shortens = shorten is not whole
        """Whether a message may be sent otherwise than it came before anything is cut."""
        self.sizes: Sequence[int] = Lazy(len(self.messages), self._size_first) if self.shortens else came
        """Tokens of each message as it is sent first."""
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
        return {index: call.tool for index, call in self._calls.items()}

    @cached_property
    def _calls(self) -> Mapping[int, _Call]:
        """By message of a tool, what it answers."""
        known: dict[str, tuple[str, str]] = {}
        found: dict[int, _Call] = {}
        question = None
        for index, message in enumerate(self.messages):
            if message.role == "user":
                question = index
            if message.role == "tool":
                nobody = str(message.fields.get("name", "")), ""
                found[index] = _Call(*known.get(str(message.fields.get("tool_call_id")), nobody), question)
                continue
            for call in message.fields.get("tool_calls") or ():
                function = call.get("function") or {}
                known[str(call.get("id"))] = str(function.get("name", "")), str(function.get("arguments", ""))
        return found

    def sent_first(self, index: int) -> Message:
        """Give a message as it is sent before anything is cut."""
        message = self.messages[index]
        text = self.shortened[index].text if self.shortens else ""
        return replace(message, content=with_one_text(message.content, text)) if text else message

    def question_of(self, index: int, without: Collection[Place]) -> str:
        """Give what a user asks, without some documents."""
        texts = texts_of(self.messages[index].content)
        for document in self.documents_at(index, without):
            text = texts[document.place.text]
            texts[document.place.text] = f"{text[: document.start]}\n\n{text[document.stop :]}"
        return asked_in("\n\n".join(texts))

    def documents_of(self, index: int) -> Sequence[Document]:
        """Give the documents in a message: of a user or a tool, and long."""
        found = self._documents.get(index)
        if found is None:
            found = self._documents[index] = tuple(self._documents_of(index))
        return found

    def documents_at(self, index: int, places: Collection[Place]) -> list[Document]:
        """Give those of a message's documents that stand at some places."""
        return [document for document in self.documents_of(index) if document.place in places]

    def _shortened(self, index: int) -> Shortened:
        message = self.messages[index]
        if message.role != "tool" or message.fields.get("is_error"):
            return WHOLE
        tool, arguments, question = self._calls[index]
        if tool in self._exclude_tools:
            return WHOLE
        asked = ""
        if question is not None:
            asked = self.question_of(question, [document.place for document in self.documents_of(question)])
        return self._shorten(Result("\n".join(texts_of(message.content)), tool, f"{asked}\n{arguments}"))

    def _documents_of(self, index: int) -> Iterator[Document]:
        message = self.sent_first(index)
        if message.role not in _DOCUMENTED or self.sizes[index] <= self.document_tokens:
            return
        for number, text in enumerate(texts_of(message.content)):
            start, stop = _span(message, text)
            size = self._count(text[start:stop])
            if size > self.document_tokens:
                yield Document(Place(index, number), start, stop, size)

    def _size_first(self, index: int) -> int:
        return self.sizes_as_they_came[index] - self.shortened[index].saved_tokens

    def _size(self, index: int) -> int:
        message = self.messages[index]
        texts = sum(self._size_of(message, text) for text in texts_of(message.content))
        calls = message.fields.get("tool_calls")
        return MESSAGE_TOKENS + texts + (self._count(orjson.dumps(calls).decode()) if calls else 0)

    def _size_of(self, message: Message, text: str) -> int:
        """Measure a text; one with a document by its parts.

        Long texts are estimated by samples: what is left without the document would else be anything, or less than nothing.
        """
        size = self._count(text)
        if size <= self.document_tokens or message.role not in _DOCUMENTED:
            return size
        start, stop = _span(message, text)
        parts = (text[:start], text[start:stop], text[stop:])
        return sum(map(self._count, filter(None, parts)))


def _span(message: Message, text: str) -> tuple[int, int]:
    return document_span(text) if message.role == "user" else (0, len(text))


def with_one_text(content: Content, text: str) -> Content:
    """Put one text in the place of all; what is no text stays."""
    if not isinstance(content, tuple):
        return text
    return (text_part(text), *(part for part in content if part["type"] != "text"))
