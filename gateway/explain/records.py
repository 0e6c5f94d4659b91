"""What the gateway knows of the last prompts that the engine does not: whose they were, and where they differed."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from gateway.explain.places import Place

MAX_RECORDS = 4096


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """One admitted prompt. Holds no text but the names of its tools."""

    completion_id: str
    request_id: str
    tenant_id: str
    route: str
    num_prompt_tokens: int
    place: Place | None
    """Where it first differs from the nearest cached text; None: nowhere, or regions are not known."""
    tool_names: tuple[str, ...]
    """In the order of the prompt."""


class PromptRecords:
    """Bounded, by completion; the oldest is forgotten first."""

    def __init__(self, *, max_records: int = MAX_RECORDS) -> None:
        self._max_records = max_records
        self._records: OrderedDict[str, PromptRecord] = OrderedDict()

    def note(self, record: PromptRecord) -> None:
        """Remember a prompt."""
        self._records[record.completion_id] = record
        if len(self._records) > self._max_records:
            self._records.popitem(last=False)

    def find(self, completion_id: str) -> PromptRecord | None:
        """Return a prompt; None: not known (any more)."""
        return self._records.get(completion_id)
