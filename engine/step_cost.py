"""What a step takes, learned from the steps that were, so that a chunk can be cut to a time. Reads no clock.

    seconds = fixed + row * rows + read * (context of the decode rows) + pair * (query-key pairs of the chunks)

The engine measures; a coefficient takes the share of an error that it had in the prediction. So all stay positive, no
unit matters, one outlier cannot do much, and a machine a hundred times faster than the start values is learned in
a hundred steps.

Source: multiplicative algebraic reconstruction, Gordon, Bender and Herman 1970.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, inf, log, sqrt

from engine.batch import ScheduledRequest

RATE = 0.25
"""Of an error that one step corrects."""
MAX_ERROR = 4.0
"""A step that took more than this many times longer (or shorter) than predicted counts as one that took so many."""


class StepCost:
    """Predicts seconds; starts from a 135M model in bfloat16 on two cores."""

    def __init__(
        self, *, fixed: float = 0.028, row: float = 1 / 1200, read: float = 2e-6, pair: float = 1e-7, fits: bool = True
    ) -> None:
        self.fixed = fixed
        """Seconds of a step however small."""
        self.row = row
        """Seconds a token that is computed."""
        self.read = read
        """Seconds a cached token that a decode row attends to."""
        self.pair = pair
        """Seconds a (token, earlier token) pair of a chunk."""
        self._fits = fits

    def decode_seconds(self, context: int) -> float:
        """Predict what one decode row adds."""
        return self.row + self.read * context

    def chunk_seconds(self, num_tokens: int, context: int) -> float:
        """Predict what a chunk behind `context` computed tokens adds."""
        return self.row * num_tokens + self.pair * _pairs(num_tokens, context)

    def tokens_within(self, seconds: float, context: int) -> int | float:
        """Return the largest chunk behind `context` computed tokens that adds no more than `seconds`."""
        if seconds == inf:
            return inf
        if seconds <= 0:
            return 0
        linear = self.row + self.pair * context
        return int(2 * seconds / (linear + sqrt(linear * linear + 2 * self.pair * seconds)))

    def observe(self, requests: Iterable[ScheduledRequest], seconds: float) -> None:
        """Learn from a measured step."""
        if not self._fits or seconds <= 0:
            return
        rows = context = 0
        pairs = 0.0
        for request in requests:
            rows += request.num_new_tokens
            if request.num_new_tokens == 1:
                context += request.num_computed_tokens
            else:
                pairs += _pairs(request.num_new_tokens, request.num_computed_tokens)
        parts = (self.fixed, self.row * rows, self.read * context, self.pair * pairs)
        predicted = sum(parts)
        error = min(MAX_ERROR, max(1 / MAX_ERROR, seconds / predicted))
        exponent = RATE * log(error) / predicted
        self.fixed *= exp(exponent * parts[0])
        self.row *= exp(exponent * parts[1])
        self.read *= exp(exponent * parts[2])
        self.pair *= exp(exponent * parts[3])


def _pairs(num_tokens: int, context: int) -> float:
    return num_tokens * (context + num_tokens / 2)
