"""What a step takes, learned from the steps that were, so that a chunk can be cut to a time. Reads no clock.

    seconds = fixed + row * rows + read * (context of the decode rows) + pair * (query-key pairs of the chunks)

The engine measures. The four coefficients are those of least squares on relative errors over the last hundred steps or
so, none of them negative; what those steps do not tell stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, sqrt

from engine.batch import ScheduledRequest

FIXED_SHARE = 1 / 9
"""Of a full step: longer ones would hardly be faster, and make everybody wait."""
MEMORY = 0.99
"""Weight that a step keeps with each later one."""
START_WEIGHT = 0.1
"""Of each value to start from, in steps."""
MAX_ERROR = 4.0
"""A step that took more than this many times longer (or shorter) than predicted counts as one that took so many."""
FORGOTTEN = 1e-30
MAX_FALL = 0.5
"""What a step leaves of a coefficient at least, so that none vanishes for good."""


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
        # Decayed sums over steps of x_i * x_j and of x_i, where sum(c_i * x_i) should be 1; a little speaks for the start.
        start = [fixed, row, read, pair]
        self._products = [[START_WEIGHT / c**2 if i == j else 0.0 for j in range(4)] for i, c in enumerate(start)]
        self._sums = [START_WEIGHT / c for c in start]

    @property
    def full_step_seconds(self) -> float:
        """What a step takes that is long enough to be efficient."""
        return self.fixed / FIXED_SHARE

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
            num_tokens = len(request.token_ids)
            rows += num_tokens
            if num_tokens == 1:
                context += request.num_computed_tokens
            else:
                pairs += _pairs(num_tokens, request.num_computed_tokens)
        coefficients = [self.fixed, self.row, self.read, self.pair]
        predicted = self.fixed + self.row * rows + self.read * context + self.pair * pairs
        seconds = min(predicted * MAX_ERROR, max(predicted / MAX_ERROR, seconds))
        self._remember([1 / seconds, rows / seconds, context / seconds, pairs / seconds])
        self.fixed, self.row, self.read, self.pair = self._descend(coefficients)

    def _remember(self, features: list[float]) -> None:
        for i, feature in enumerate(features):
            self._sums[i] = self._sums[i] * MEMORY + feature
            products = self._products[i]
            for j, other in enumerate(features):
                products[j] = products[j] * MEMORY + feature * other

    def _descend(self, coefficients: list[float]) -> list[float]:
        """Move each coefficient in turn to where it fits best beside the others."""
        for i, products in enumerate(self._products):
            if products[i] < FORGOTTEN:  # no step for so long had such a part
                continue
            others = sum(product * c for product, c in zip(products, coefficients, strict=True))
            best = coefficients[i] + (self._sums[i] - others) / products[i]
            coefficients[i] = max(coefficients[i] * MAX_FALL, best)
        return coefficients


def _pairs(num_tokens: int, context: int) -> float:
    return num_tokens * (context + num_tokens / 2)
