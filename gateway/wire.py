"""What an endpoint prints of one answer, in its provider's words; what all answers say in a header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.answer_pieces import AnswerEnd, Piece, WholeAnswer
from gateway.backends.base import Admission
from gateway.errors import Problem
from gateway.prompt_logprobs import ScoredPrompt


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
    context: Mapping[str, Any] = field(default_factory=dict)
    """Fields for the end of the answer, on what the context policy did; empty: it is off."""
    prompts: Sequence[ScoredPrompt] = ()
    """Whose log probabilities are wanted, in order; none: nobody asks."""

    @property
    def num_written_tokens(self) -> int:
        """Those of the prompt that are new in the cache: it keeps full blocks."""
        admission = self.admission
        full = admission.num_prompt_tokens // self.block_size * self.block_size
        return max(0, full - admission.num_cached_tokens)


class Wire(Protocol):
    """Prints the answers to one request: `whole`, or frames of a stream in the order of the methods below.

    A choice is the number of an answer, from 0. Each one has its own `first`, `piece` and `end`; choices may interleave.
    """

    @property
    def ping(self) -> bytes:
        """A sign of life in a stream."""
        ...

    def whole(self, answers: Sequence[WholeAnswer]) -> bytes:
        """Print all answers at once, by choice."""
        ...

    def opening(self) -> bytes:
        """Print what goes out at admission; may be nothing."""
        ...

    def first(self, choice: int, said: Piece | AnswerEnd) -> bytes:
        """Print what goes out together with a choice's first piece, or with its end where there is none: before it."""
        ...

    def piece(self, choice: int, piece: Piece) -> bytes:
        """Print more of an answer."""
        ...

    def end(self, choice: int, end: AnswerEnd) -> bytes:
        """Print why an answer is over."""
        ...

    def close(self, num_tokens: int) -> bytes:
        """Print the last frames; `num_tokens` are those of all answers."""
        ...

    def failure(self, problem: Problem) -> bytes:
        """Print the last frame of answers that failed on the way."""
        ...


def cache_header(admission: Admission, fired_rules: Sequence[str]) -> bytes:
    """Print `x-prefixgate-cache`: what was reused, and in one word why no more."""
    return (
        f"cached={admission.num_cached_tokens}; prompt={admission.num_prompt_tokens}; "
        f"reason={admission.reason}; rules={','.join(fired_rules) or 'none'}"
    ).encode()
