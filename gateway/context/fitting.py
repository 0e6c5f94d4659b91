"""A plan becomes the conversation that is sent: placeholders, stubs, a summary, and passages where a question needs them.

All texts follow from the history and the plan. Those that take time are remembered by what they follow from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from gateway.context.history import Document, History, Place
from gateway.context.placeholders import cleared_result, stub
from gateway.context.plan import Plan, Planner
from gateway.context.units import Counter, Unit
from gateway.conversation import Content, Conversation, Message, map_texts, text_part, texts_of


class Archive(Protocol):
    """What is not sent any more, ready to be searched."""

    def passages(self, question: str, budget: int) -> str:
        """Print what answers a question best, in at most so many tokens; empty: nothing does."""
        ...


FindArchive = Callable[[bytes, Callable[[], Sequence[tuple[str, str]]]], Archive]
"""Gives the archive of a cut by its name; where it must be made, of documents, each a name and a text in order."""
Summarize = Callable[[Sequence[str], int], str]
"""Tells texts in at most so many tokens."""


class Texts(Protocol):
    """What was derived before, by what it follows from."""

    def find(self, key: bytes) -> str | None:
        """Return a text; None: it was not kept, or is forgotten."""
        ...

    def keep(self, key: bytes, text: str) -> None:
        """Remember a text."""
        ...


@dataclass(frozen=True, slots=True)
class Edit:
    """One kind of change to what was sent."""

    kind: str
    """`clear_tool_results`, `stub_documents`, `compress_tool_results`, `summarize` or `passages`."""
    number: int
    """Of results, documents, messages, questions."""
    cleared_tokens: int
    """How many fewer are sent, by estimate; below 0: more."""
    detail: Mapping[str, str] = field(default_factory=dict)
    """What else is told of it, by name."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A conversation as it is sent."""

    conversation: Conversation
    plan: Plan
    edits: tuple[Edit, ...]
    """In the order in which they were made; none: it is sent as it came, and is the same object."""
    tokens_before: int
    tokens_after: int
    is_new_cut: bool
    """Whether it was cut at this very request: what was sent before does not begin it."""


class Fitter:
    """Carries a plan out.

    Args:
        history: measured.
        planner: of the same history.
        digests: see `Beginnings`.
        count: see `Counter`.
        find_archive: of what is left out.
        summarize: what is left out.
        texts: what was derived before.
    """

    def __init__(
        self,
        history: History,
        planner: Planner,
        digests: Sequence[bytes],
        count: Counter,
        *,
        find_archive: FindArchive,
        summarize: Summarize,
        texts: Texts,
    ) -> None:
        self._history = history
        self._planner = planner
        self._digests = digests
        self._count = count
        self._find_archive = find_archive
        self._summarize = summarize
        self._texts = texts

    def fit(self, plan: Plan) -> Fitted:
        """Make what is sent of a history that is planned to its end."""
        history = self._history
        before = plan.num_tokens
        if not plan.leaves_out:
            return Fitted(history.conversation, plan, (), before, before, is_new_cut=False)
        units = [] if plan.pinned is None else [history.units[plan.pinned]]
        units += history.units[plan.num_away : plan.num_units]
        passages = self._passages(plan, units)
        messages = [message for unit in units for message in self._edited(unit, plan, passages)]
        if plan.num_away and (summary := self._summary(plan)):
            messages = _begun_with(summary, messages)
        conversation = replace(history.conversation, messages=(*history.messages[: history.num_head], *messages))
        sent = History(conversation, self._count, document_tokens=history.document_tokens)
        after = sent.head_tokens + sum(sent.sizes[sent.num_head :])
        is_new = plan.cut_at == plan.num_units
        return Fitted(conversation, plan, self._edits(plan, passages), before, after, is_new_cut=is_new)

    def _edited(self, unit: Unit, plan: Plan, passages: Mapping[int, str]) -> list[Message]:
        edited = []
        for index, message in enumerate(unit.messages, unit.start):
            content = self._content(index, message, plan)
            if before := passages.get(index):
                content = _in_front(before, content)
            edited.append(message if content is message.content else replace(message, content=content))
        return edited

    def _content(self, index: int, message: Message, plan: Plan) -> Content:
        if index in plan.cleared:
            text = "\n".join(texts_of(message.content))
            return cleared_result(self._history.tool_names.get(index, ""), text, self._count(text))
        stubbed = {
            document.place.text: document
            for document in self._history.documents_of(index)
            if document.place in plan.stubbed
        }
        if not stubbed:
            return message.content
        numbers = iter(range(len(texts_of(message.content))))

        def change(text: str) -> str:
            document = stubbed.get(next(numbers))
            return text if document is None else _without(text, document)

        return map_texts(message.content, change)

    def _passages(self, plan: Plan, units: Sequence[Unit]) -> dict[int, str]:
        """Find, for each question since the last cut, what of the archive it needs; by message."""
        found: dict[int, str] = {}
        archive: Archive | None = None
        for unit in units:
            if not unit.is_of_user or unit.start < self._history.units[plan.question].start:
                continue
            key = b"passages" + self._key(plan) + self._digests[unit.start - self._history.num_head + 1]
            text = self._texts.find(key)
            if text is None:
                archive = archive or self._find_archive(self._key(plan), partial(self._left_out, plan))
                question = "\n".join(texts_of(self._content(unit.start, unit.messages[0], plan)))
                text = archive.passages(question, self._planner.passage_tokens)
                self._texts.keep(key, text)
            if text:
                found[unit.start] = text
        return found

    def _summary(self, plan: Plan) -> str:
        if not self._planner.summary_tokens:
            return ""
        key = b"summary" + self._key(plan)
        text = self._texts.find(key)
        if text is None:
            away = [text for index in self._away(plan) for text in texts_of(self._history.messages[index].content)]
            text = self._summarize(away, self._planner.summary_tokens)
            self._texts.keep(key, text)
        return text

    def _key(self, plan: Plan) -> bytes:
        """Name the last cut: the history up to it, and what decided about it."""
        last = self._history.units[plan.cut_at - 1]
        return self._planner.fingerprint + self._digests[last.start + len(last.messages) - self._history.num_head]

    def _away(self, plan: Plan) -> list[int]:
        """Give the messages in whose place the summary stands."""
        units = self._history.units[: plan.num_away]
        return [
            index
            for number, unit in enumerate(units)
            if number != plan.pinned
            for index in range(unit.start, unit.start + len(unit.messages))
        ]

    def _left_out(self, plan: Plan) -> list[tuple[str, str]]:
        """Give everything that is not sent, in the order of the history."""
        away = set(self._away(plan))
        found: list[tuple[str, str]] = []
        for index in range(self._history.num_head, len(self._history.messages)):
            texts = texts_of(self._history.messages[index].content)
            if index in away or index in plan.cleared:
                found += [(Place(index, number).document, text) for number, text in enumerate(texts)]
            else:
                documents = [entry for entry in self._history.documents_of(index) if entry.place in plan.stubbed]
                found += [
                    (entry.place.document, texts[entry.place.text][entry.start : entry.stop]) for entry in documents
                ]
        return found

    def _edits(self, plan: Plan, passages: Mapping[int, str]) -> tuple[Edit, ...]:
        history, away = self._history, self._away(plan)
        cleared = [index for index in plan.cleared if index not in set(away)]
        stubs = [
            document
            for place in plan.stubbed
            if place.message not in set(away)
            for document in history.documents_of(place.message)
            if document.place == place
        ]
        edits = [
            Edit("clear_tool_results", len(cleared), sum(history.sizes[index] for index in cleared)),
            Edit("stub_documents", len(stubs), sum(document.num_tokens for document in stubs)),
            Edit("summarize", len(away), sum(history.sizes[index] for index in away)),
            Edit("passages", len(passages), -sum(map(self._count, passages.values()))),
        ]
        return tuple(edit for edit in edits if edit.number)


def _without(text: str, document: Document) -> str:
    middle = text[document.start : document.stop]
    end = "\n\n" if document.stop < len(text) else ""
    return (
        text[: document.start]
        + stub(document.place.document, middle, document.num_tokens)
        + end
        + text[document.stop :]
    )


def _begun_with(summary: str, messages: Sequence[Message]) -> list[Message]:
    """Put a summary first: in front of a user's text, for templates want roles to alternate, else as a user's message."""
    if messages and messages[0].role == "user":
        first = replace(messages[0], content=_in_front(summary, messages[0].content))
        return [first, *messages[1:]]
    return [Message("user", summary), *messages]


def _in_front(text: str, content: Content) -> Content:
    if isinstance(content, tuple):
        return (text_part(text), *content)
    return f"{text}\n\n{content}" if content else text
