"""A prompt on its way to the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.accounting.accounting import Origin
from gateway.auth import Identity
from gateway.backends.base import GenerationRequest
from gateway.context.report import ContextReport
from gateway.context.rule import NAME as CONTEXT_POLICY
from gateway.normalize.recollection import NextTurn
from gateway.rendering import RenderedPrompt
from gateway.retention_hints import RetainedPrompt
from gateway.tools.reading import Reading


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A request for the engine, and what was done to the prompt on the way."""

    request: GenerationRequest
    identity: Identity
    """Whose cache it may use."""
    origin: Origin | None = None
    """None: it is a text without a form that rules could change."""
    rendered: RenderedPrompt | None = None
    prompt_id: str | None = None
    """The registered prompt that was named, or that the tokens begin with."""
    next_turn: NextTurn | None = None
    """Remembers the answer; None: it is not to be remembered."""
    reading: Reading | None = None
    """What is to be found in the answer beside text; None: nothing."""
    retained: Sequence[RetainedPrompt] = ()
    """What its sender wants kept."""
    context: ContextReport | None = None
    """What the context policy did; None: it is off."""
    more: tuple[GenerationRequest, ...] = ()
    """For the further prompts of the same body, which differ in their tokens alone."""

    @property
    def requests(self) -> tuple[GenerationRequest, ...]:
        """One for each prompt."""
        return (self.request, *self.more)

    @property
    def num_answers(self) -> int:
        """To all prompts."""
        return len(self.requests) * self.request.sampling.n

    @property
    def most_tokens(self) -> int:
        """Prompts and answers together, if none of them ends early."""
        return sum(len(part.token_ids) + part.sampling.n * part.sampling.max_tokens for part in self.requests)

    @property
    def cut_tokens(self) -> int | None:
        """By estimate: left out by the context policy, which cut the chat at this very request; None: it did not."""
        report = self.context
        return report.cleared_tokens if report and report.is_applied and report.is_new_cut else None

    @property
    def fired_rules(self) -> tuple[str, ...]:
        """Names of the rules that changed something, in order."""
        fired = self.origin.normalized.fired if self.origin else ()
        return (*fired, CONTEXT_POLICY) if self.context and self.context.is_applied else fired
