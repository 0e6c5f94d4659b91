"""How much of a prompt goes into a step: as much as fits into its tokens and its time, or a cell of a fixed grid."""

from __future__ import annotations

from dataclasses import dataclass

from engine.batch import MAX_SCORED_TOKENS
from engine.config import SchedulerConfig
from engine.request import Request
from engine.step_cost import StepCost

MIN_CHUNK = 32
"""Tokens; less is not worth a request's place in a step, so a step that is full already still gives each lane this."""


@dataclass(slots=True)
class Budget:
    """What may still be computed in a part of a step."""

    tokens: int
    seconds: float
    used: bool = False

    def take(self, num_tokens: int, seconds: float) -> None:
        """Something was scheduled."""
        self.tokens -= num_tokens
        self.seconds -= seconds
        self.used = True


class Chunker:
    """Cuts chunks."""

    def __init__(self, config: SchedulerConfig, cost: StepCost) -> None:
        self._config = config
        self._cost = cost

    @property
    def cell(self) -> int:
        """Tokens without which the largest chunk cannot be cut; 0 where any size will do."""
        return self._config.prefill_chunk if self._config.deterministic else 0

    def is_open(self, budget: Budget) -> bool:
        """Whether anything more can be scheduled."""
        if budget.tokens <= 0:
            return False
        return not budget.used or self._cost.tokens_within(budget.seconds, 0) >= MIN_CHUNK

    def cut(self, request: Request, budget: Budget) -> int:
        """Return how many of a request's tokens to compute in this step.

        The last token of a prompt that siblings are to fork from is left: each of them computes it.
        """
        wanted = request.num_uncomputed_tokens - bool(request.unforked)
        limit = self._config.prefill_chunk
        if self._config.deterministic:
            chunk = min(wanted, limit - request.num_computed_tokens % limit)
            return chunk if chunk <= budget.tokens else 0
        chunk = min(wanted, budget.tokens, limit or wanted, wanted if request.is_scored else MAX_SCORED_TOKENS)
        within = self._cost.tokens_within(budget.seconds, request.num_computed_tokens)
        if within < chunk and within < MIN_CHUNK:
            return 0 if budget.used else min(chunk, MIN_CHUNK)
        return int(min(chunk, within))
