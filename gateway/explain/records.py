"""What the gateway knows of the last prompts that the engine does not: whose they were, and what their parts are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from gateway.explain.places import Place, Span, place_of

MAX_RECORDS = 4096
MAX_TOKENS = 2_000_000
"""Of the prompts whose regions can still be found: finding them takes as long as rendering, so it waits for a question."""


@dataclass(eq=False)
class PromptRecord:
    """One admitted prompt."""

    completion_id: str
    request_id: str
    tenant_id: str
    route: str
    num_prompt_tokens: int
    num_common_tokens: int
    """So far it agrees with the nearest cached text."""
    roles: tuple[str, ...]
    """Of the messages that were rendered."""
    tool_names: tuple[str, ...]
    """In the order of the prompt."""
    spans: Callable[[], Sequence[Span]] | None
    """Finds the regions of the prompt; None: too long ago."""

    @cached_property
    def place(self) -> Place | None:
        """Where the prompt first differs from the nearest cached text; None: nowhere, or not known."""
        return place_of(self.spans(), self.num_common_tokens, self.roles) if self.spans else None


class PromptRecords:
    """Bounded, by completion; the oldest is forgotten first."""

    def __init__(self, *, max_records: int = MAX_RECORDS, max_tokens: int = MAX_TOKENS) -> None:
        self._max_records = max_records
        self._max_tokens = max_tokens
        self._records: OrderedDict[str, PromptRecord] = OrderedDict()
        self._with_spans: OrderedDict[str, PromptRecord] = OrderedDict()
        self._num_tokens = 0

    def note(self, record: PromptRecord) -> None:
        """Remember a prompt."""
        self._records[record.completion_id] = self._with_spans[record.completion_id] = record
        self._num_tokens += record.num_prompt_tokens
        if len(self._records) > self._max_records:
            self._records.popitem(last=False)
        while self._num_tokens > self._max_tokens or len(self._with_spans) > self._max_records:
            _, oldest = self._with_spans.popitem(last=False)
            oldest.spans = None
            self._num_tokens -= oldest.num_prompt_tokens

    def find(self, completion_id: str) -> PromptRecord | None:
        """Return a prompt; None: not known (any more)."""
        return self._records.get(completion_id)
