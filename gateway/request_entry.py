"""What is remembered of one request. Knows nothing of where it is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.backends.base import Admission
from gateway.context.report import ContextReport
from gateway.errors import Problem
from gateway.first_tokens import cache_label

CLIENT_GONE = 499
"""The status where the client did not wait for one; nginx uses the same number."""


@dataclass(slots=True)
class RequestEntry:
    """One request, filled in while it runs. Times are seconds; None: it did not get so far."""

    request_id: str
    endpoint: str
    tenant_id: str
    key_id: str | None
    created_at: float
    """Since 1970."""
    completion_id: str = ""
    prompt_id: str | None = None
    """The registered prompt that it named or began with."""
    model: str = ""
    status: int = CLIENT_GONE
    """What the client got. An error after the first byte counts with the status it would have had."""
    error: str | None = None
    """Its code in the table of errors."""
    finish_reason: str | None = None
    is_stream: bool = False
    prepare_seconds: float | None = None
    """From the arrival of the request to the hand-over to the engine, or to an upstream."""
    queue_seconds: float | None = None
    """From the hand-over to the engine to admission."""
    first_token_seconds: float | None = None
    """From the arrival of the request."""
    total_seconds: float = 0.0
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    num_output_tokens: int | None = None
    saved_seconds: float | None = None
    """For how long the engine would have computed the cached tokens, as it estimates; None also: nobody can tell."""
    reasons: Mapping[str, int] | None = None
    rules: Sequence[str] | None = None
    context: ContextReport | None = None
    """What the context policy did; None: it is off."""
    request_body: str | None = None
    answer_text: str | None = None

    @property
    def num_chars(self) -> int:
        """Size of the stored content."""
        return len(self.request_body or "") + len(self.answer_text or "")

    @property
    def cache_label(self) -> str | None:
        """Hit or miss; None: it is not known what was cached."""
        if self.num_prompt_tokens is None or self.num_cached_tokens is None:
            return None
        return cache_label(self.num_prompt_tokens, self.num_cached_tokens)

    def admit(self, admission: Admission) -> None:
        """Note what was reused."""
        self.num_prompt_tokens = admission.num_prompt_tokens
        self.num_cached_tokens = admission.num_cached_tokens
        self.saved_seconds = admission.saved_seconds
        self.reasons = admission.reasons

    def fail(self, problem: Problem) -> None:
        """Note how it failed."""
        self.status = problem.status
        self.error = problem.code
