"""What stands in the place of older turns, and what it takes to let the model write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gateway.conversation import Conversation

if TYPE_CHECKING:
    from gateway.context.fitted import Fitted

Fallback = Literal["timed_out", "failed"]
"""Why the model did not write what it was to write."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Kept as it is for as long as it is remembered: another text would cost the cache all that stands behind it."""

    text: str
    """Empty: nothing of those turns is worth its place."""
    written_by: Literal["extractive", "model"] = "extractive"
    fallback: Fallback | None = None
    """None: nobody else was to write it."""

    @property
    def detail(self) -> Mapping[str, str]:
        """What is told of it."""
        return {"written_by": self.written_by, **({"fallback": self.fallback} if self.fallback else {})}


@dataclass(frozen=True, slots=True)
class Lacks:
    """A chat whose cut waits for a summary by the model."""

    scope: str
    key: bytes
    """Remember the summary by these."""
    conversation: Conversation
    """To be asked with: the chat as it was sent before the cut, up to an answer, so that the engine has nearly all of it
    in its cache; then what is to be done."""
    max_tokens: int
    timeout_seconds: float
    check: Callable[[str, bool], str | None]
    """Takes what the model wrote, and whether it was cut off; gives what is good of it, None: nothing."""
    extract: Callable[[], str]
    """Makes the summary that stands in where the model does not deliver. Takes up to some 100 ms."""
    finish: Callable[[Summary], Fitted]
