"""What is counted of summaries that the model writes. Their tokens count among all others, too."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from gateway.backends.base import Admission
from gateway.context.summary import Fallback

_REASONS: tuple[Fallback, ...] = ("timed_out", "failed")
_TYPES = ("prompt", "cached", "generated")


class SummaryMetrics:
    """Series of calls that the gateway itself makes, whose prompts nobody sent.

    Args:
        registry: that shows them.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._fallbacks = Counter(
            "prefixgate_context_summary_fallbacks",
            "Summaries that the model was asked for and did not write, once each",
            ("reason",),
            registry=registry,
        )
        self._tokens = Counter(
            "prefixgate_context_summary_tokens",
            "Tokens of calls that wrote summaries: of the prompt, of that those from the cache, and generated",
            ("type",),
            registry=registry,
        )
        for reason in _REASONS:  # 0, until there is one
            self._fallbacks.labels(reason)
        for name in _TYPES:
            self._tokens.labels(name)

    def count_fallback(self, reason: Fallback) -> None:
        """Count a summary that was quoted instead."""
        self._fallbacks.labels(reason).inc()

    def count_call(self, admission: Admission, num_generated: int) -> None:
        """Count a call, whatever came of it."""
        numbers = (admission.num_prompt_tokens, admission.num_cached_tokens, num_generated)
        for name, number in zip(_TYPES, numbers, strict=True):
            self._tokens.labels(name).inc(number)
