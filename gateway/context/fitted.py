"""A chat as it is sent, and what was done to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.context.plan import Plan
from gateway.conversation import Conversation


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
