"""What an endpoint prints of one answer, in its provider's words; what all answers say in a header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.backends.base import Admission
from gateway.errors import Problem
from gateway.logprobs import Entry
from prefixcache.interface import Reason
from prefixcache.reasons import main_reason


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What is known of an answer before its first token."""

    completion_id: str
    created: int
    """Seconds since 1970."""
    model: str
    admission: Admission
    block_size: int
    """Of the cache, in tokens."""
    diagnostics: Mapping[str, Any]
    """Fields for the body; empty: none were asked for."""


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    """What is known when it is over."""

    finish_reason: str
    """`stop` or `length`."""
    stop: str | None
    """The stop string that ended it."""
    num_tokens: int
    """Generated."""
    logprobs: Sequence[Entry] | None = None
    """Of the tokens that no text was printed for yet; None: not asked for."""


class Wire(Protocol):
    """Prints one answer: `whole`, or frames of a stream in the order of the methods below."""

    @property
    def ping(self) -> bytes:
        """A sign of life in a stream."""
        ...

    def whole(self, text: str, end: AnswerEnd) -> bytes:
        """Print the answer in one piece."""
        ...

    def opening(self) -> bytes:
        """Print what goes out at admission; may be nothing."""
        ...

    def first(self) -> bytes:
        """Print what goes out together with the first text, or with the end where there is none."""
        ...

    def text(self, text: str, logprobs: Sequence[Entry] | None) -> bytes:
        """Print more text; log probabilities are None where they were not asked for."""
        ...

    def end(self, end: AnswerEnd) -> bytes:
        """Print the last frames."""
        ...

    def failure(self, problem: Problem) -> bytes:
        """Print the last frame of an answer that failed on the way."""
        ...


def cache_header(admission: Admission, fired_rules: Sequence[str]) -> bytes:
    """Print `x-prefixgate-cache`: what was reused, and in one word why no more."""
    return (
        f"cached={admission.num_cached_tokens}; prompt={admission.num_prompt_tokens}; "
        f"reason={_main_reason(admission)}; rules={','.join(fired_rules) or 'none'}"
    ).encode()


def _main_reason(admission: Admission) -> Reason:
    """Find the one reason to tell a client."""
    reasons = {Reason(name): num_blocks for name, num_blocks in admission.reasons.items() if num_blocks}
    if not reasons:
        return Reason.HIT if admission.num_cached_tokens else Reason.NEVER_CACHED
    reason = main_reason(reasons, num_computed_tokens=admission.num_prompt_tokens - admission.num_cached_tokens)
    return Reason.NEVER_CACHED if reason is Reason.OTHER_SCOPE else reason
