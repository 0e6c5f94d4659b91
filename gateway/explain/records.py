"""What the gateway knows of the last prompts that the engine does not: whose they were, and what came from where."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gateway.explain.places import Place, Span, place_of

MAX_RECORDS = 4096
MAX_CHARS = 16 * 1024 * 1024
"""Of the rendered prompts together."""


class Rendered(Protocol):
    """A prompt as it was rendered. Finding its regions takes time, so it is done when somebody asks."""

    @property
    def num_chars(self) -> int:
        """Size of its text."""
        ...

    @property
    def regions(self) -> Sequence[Span]:
        """Who owns which tokens."""
        ...


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """One admitted prompt."""

    completion_id: str
    request_id: str
    tenant_id: str
    route: str
    num_prompt_tokens: int
    num_common_tokens: int
    """Before the first one that the nearest cached text does not have."""
    roles: tuple[str, ...]
    """Of its messages."""
    tool_names: tuple[str, ...]
    """In the order of the prompt."""
    rendered: Rendered | None = None
    """None: not known (any more)."""
    cut_tokens: int | None = None
    """By estimate: left out by the context policy, which cut the chat at this very request; None: it did not."""

    @property
    def regions(self) -> Sequence[Span]:
        """Who owns which of its tokens; empty: not known (any more)."""
        return self.rendered.regions if self.rendered else ()

    async def locate(self) -> None:
        """Find the regions now, outside of the event loop; they are kept."""
        await asyncio.to_thread(lambda: self.regions)

    @property
    def place(self) -> Place | None:
        """Where it first differs from the nearest cached text; None: nowhere, or regions are not known."""
        return place_of(self.regions, self.num_common_tokens, self.roles)


class PromptRecords:
    """Bounded, by completion; the oldest is forgotten first, and before that its text."""

    def __init__(self, *, max_records: int = MAX_RECORDS, max_chars: int = MAX_CHARS) -> None:
        self._max_records = max_records
        self._max_chars = max_chars
        self._records: OrderedDict[str, PromptRecord] = OrderedDict()
        self._num_chars: OrderedDict[str, int] = OrderedDict()
        self._sum_chars = 0

    def note(self, record: PromptRecord) -> None:
        """Remember a prompt."""
        self._forget_text(record.completion_id)
        self._records[record.completion_id] = record
        if len(self._records) > self._max_records:
            oldest, _ = self._records.popitem(last=False)
            self._forget_text(oldest)
        if record.rendered is not None:
            self._num_chars[record.completion_id] = record.rendered.num_chars
            self._sum_chars += record.rendered.num_chars
        while self._sum_chars > self._max_chars:
            self._forget_text(next(iter(self._num_chars)))

    def find(self, completion_id: str) -> PromptRecord | None:
        """Return a prompt; None: not known (any more)."""
        return self._records.get(completion_id)

    def _forget_text(self, completion_id: str) -> None:
        self._sum_chars -= self._num_chars.pop(completion_id, 0)
        if completion_id in self._records:
            self._records[completion_id] = replace(self._records[completion_id], rendered=None)
