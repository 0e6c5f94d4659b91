"""Registered documents that messages refer to: looked up, and put where most can share them.

A document is a registered prompt that is one text. What is referred to before the model's first answer goes to the head,
before all that the client says, exactly as it is registered: so its blocks are those of everybody who refers to it. Later
a new head would cost the cache the whole history, so there the text goes where it is referred to. Both follow from the
history alone: a turn more never moves a document.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.conversation import Content, Conversation, Message, Part, text_part, texts_of
from gateway.document_parts import DocumentPart
from gateway.errors import ContextLengthError, InvalidRequestError, NotFoundError, shown
from gateway.normalize.registry import Choice
from gateway.prompts.head import prompt_head
from gateway.prompts.registered import RegisteredPrompts, RegisteredVersion
from gateway.rendering import PromptRenderer
from gateway.tokenizer import TokenArray

_LABEL_CHARS = 60


@dataclass(frozen=True, slots=True)
class Documented:
    """A chat with the documents that it refers to in it."""

    conversation: Conversation
    head: tuple[RegisteredVersion, ...] = ()
    """Those that stand before all that the client says, in order."""
    in_place: tuple[RegisteredVersion, ...] = ()
    """Those that stand where they were first referred to."""

    @property
    def documents(self) -> tuple[RegisteredVersion, ...]:
        """All, each once."""
        return (*self.head, *self.in_place)

    @property
    def choices(self) -> dict[str, Choice]:
        """Modes of rules, by rule, that their registrations want."""
        return {name: choice for entry in self.documents for name, choice in entry.compiled.choices.items()}

    @property
    def num_bytes(self) -> int:
        """Size of what they add."""
        return sum(len(entry.version.canonical) for entry in self.documents)

    def fitted(self, renderer: PromptRenderer) -> Documented:
        """Give the head the form that the template takes, where documents stand in it."""
        return replace(self, conversation=renderer.fit_head(self.conversation)) if self.head else self

    def shown(self) -> list[dict[str, Any]]:
        """Print which documents are in it, and where."""
        return [
            {
                "id": entry.prompt.id,
                "name": entry.prompt.name,
                "version": entry.version.version,
                "num_tokens": entry.version.num_tokens,
                "in_head": entry in self.head,
            }
            for entry in self.documents
        ]

    def public_head(self, named: RegisteredVersion | None) -> tuple[RegisteredVersion, ...]:
        """Give those public ones that nothing stands before which is not public; `named` stands before all documents."""
        standing = (*([] if named is None else [named]), *self.head)
        return tuple(itertools.takewhile(lambda entry: entry.prompt.is_public, standing))

    def too_long(self, error: ContextLengthError) -> ContextLengthError:
        """Tell with an error how much of the prompt the documents are."""
        sizes = [f"{shown(entry.prompt.name)} has {entry.version.num_tokens}" for entry in self.documents]
        text = f"{error}; of the registered documents in it {', '.join(sizes)}" if sizes else str(error)
        return ContextLengthError(text, param=error.param)


def with_documents(conversation: Conversation, prompts: RegisteredPrompts, tenant: str) -> Documented:
    """Put in what users' messages refer to.

    Raises: NotFoundError: nothing of this name that the tenant may use; InvalidRequestError: it is no document.
    """
    named = [
        (index, part.name, _document(part, prompts, tenant))
        for index, message in enumerate(conversation.messages)
        for part in _references(message)
    ]
    if not named:
        return Documented(conversation)
    first_answer = next(
        (index for index, message in enumerate(conversation.messages) if message.role == "assistant"),
        len(conversation.messages),
    )
    head = {entry.handle: entry for index, _, entry in named if index < first_answer}
    in_head = tuple(sorted(head.values(), key=lambda entry: (not entry.prompt.is_public, entry.prompt.id)))
    writer = _Writer({name: entry for _, name, entry in named}, set(head))
    messages = tuple(
        replace(message, content=writer.write(message.content)) if any(_references(message)) else message
        for message in conversation.messages
    )
    standing = tuple(message for entry in in_head for message in entry.compiled.canonical.messages)
    in_place = tuple({entry.handle: entry for _, _, entry in named if entry.handle not in head}.values())
    return Documented(replace(conversation, messages=(*standing, *messages)), in_head, in_place)


def _references(message: Message) -> Iterator[DocumentPart]:
    if message.role == "user" and isinstance(message.content, tuple):
        yield from (part for part in message.content if isinstance(part, DocumentPart))


def _document(part: DocumentPart, prompts: RegisteredPrompts, tenant: str) -> RegisteredVersion:
    versions = prompts.versions_of(part.name, tenant)
    entry = next((entry for entry in versions if entry.is_active), None)
    if entry is None:
        raise NotFoundError(
            f"{part.field}: got {shown(part.name)}, wanted the id or name of a registered document: this server stores no "
            "other files",
            param=part.field,
        )
    what = _why_none(entry)
    if what is not None:
        raise InvalidRequestError(
            f"{part.field}: got {shown(part.name)}, a registered prompt with {what}, wanted one that is a text alone",
            param=part.field,
        )
    return entry


def _why_none(entry: RegisteredVersion) -> str | None:
    """Say why a prompt is no document; None: it is one."""
    canonical = entry.compiled.canonical
    if entry.compiled.slots:
        return "slots"
    if canonical.tools:
        return "tools"
    if len(canonical.messages) > 1 or not canonical.num_head_messages:
        return "turns"
    return None


def joined_head(
    entries: Sequence[RegisteredVersion], renderer: PromptRenderer, max_model_len: int | None = None
) -> TokenArray:
    """Tokenize prompts that stand before all else, as far as all who name them have the same tokens.

    Returns: [num_tokens], int32.

    Raises: InvalidRequestError: the template refuses them; ContextLengthError: together they are far too long.
    """
    prompts = [entry.compiled.canonical for entry in entries]
    joined = Conversation(
        tuple(message for prompt in prompts for message in prompt.messages),
        tuple(tool for prompt in prompts for tool in prompt.tools),
    )
    slots = [slot for entry in entries for slot in entry.compiled.slots]
    return prompt_head(joined, slots, renderer, max_model_len=max_model_len).token_ids


class _Writer:
    """Writes contents with what stands in the place of references."""

    def __init__(self, documents: Mapping[str, RegisteredVersion], standing: set[str]) -> None:
        self._documents = documents
        self._standing = standing
        """Handles of documents that stand before what is written next."""

    def write(self, content: Content) -> Content:
        """Write one content."""
        assert isinstance(content, tuple)
        return tuple(self._written(part) if isinstance(part, DocumentPart) else part for part in content)

    def _written(self, part: DocumentPart) -> Part:
        entry = self._documents[part.name]
        text = "\n".join(texts_of(entry.compiled.canonical.messages[0].content))
        name = entry.prompt.name
        about = [] if part.context is None else [part.context]
        if entry.handle in self._standing:
            return text_part("\n".join([f"[document {name}, above: {part.title or _first_line(text)}]", *about]))
        self._standing.add(entry.handle)
        title = "" if part.title is None else f": {part.title}"
        return text_part("\n".join([f"[document {name}{title}]", *about, text]))


def _first_line(text: str) -> str:
    """Give that by which a reader finds a text."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _LABEL_CHARS else f"{line[:_LABEL_CHARS]}…"
