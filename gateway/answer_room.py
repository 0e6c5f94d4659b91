"""How long an answer may become behind its prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gateway.errors import ContextLengthError


class Wanted(Protocol):
    """What is asked for the length of an answer."""

    @property
    def max_tokens(self) -> int | None:
        """None: as many as there is room for."""
        ...

    @property
    def max_tokens_field(self) -> str:
        """Where it was said."""
        ...

    @property
    def is_max_tokens_a_bound(self) -> bool:
        """Whether fewer will do where there is no more room."""
        ...


@dataclass(frozen=True, slots=True)
class AnswerWanted:
    """See `Wanted`."""

    max_tokens: int | None = None
    max_tokens_field: str = "max_tokens"
    is_max_tokens_a_bound: bool = False


def answer_room(num_prompt_tokens: int, wanted: Wanted, field: str, max_model_len: int) -> int:
    """Give the number of tokens that may be generated.

    Args:
        num_prompt_tokens: that stand before the answer.
        wanted: what its client asked for.
        field: where the prompt came from, for errors.
        max_model_len: tokens of prompt and answer together.

    Raises: ContextLengthError: the prompt is too long, or the client asks for more than is left.
    """
    room = max_model_len - num_prompt_tokens
    if room < (wanted.max_tokens != 0):  # a prompt that is only scored may take it all
        raise ContextLengthError(
            f"{field}: got a prompt of {num_prompt_tokens} tokens, wanted at most {max_model_len - 1}: "
            f"the model takes {max_model_len} tokens, prompt and answer together",
            param=field,
        )
    if wanted.max_tokens is None:
        return room
    if wanted.max_tokens > room and not wanted.is_max_tokens_a_bound:
        raise ContextLengthError(
            f"{wanted.max_tokens_field}: got {wanted.max_tokens}, wanted at most {room}: the prompt has "
            f"{num_prompt_tokens} tokens and the model takes {max_model_len}, prompt and answer together",
            param=wanted.max_tokens_field,
        )
    return min(wanted.max_tokens, room)
