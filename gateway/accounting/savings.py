"""Sums of what rules saved. Holds numbers only; knows no prompt.

A rule may cost tokens as well as save some, so there are two sums that only grow; the difference is the reader's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.normalize.rule import Mode

Json = dict[str, Any]

NOBODY = ""
"""In the place of a rule: a difference that no rule's change explains."""


@dataclass(slots=True)
class RuleSavings:
    """Of one rule in one mode, since the gateway's start. In audit mode: what would have been."""

    fired_requests: int = 0
    sampled_requests: int = 0
    """Of those, in the sample and counted."""
    saved_tokens: int = 0
    lost_tokens: int = 0


@dataclass(slots=True)
class SampleSize:
    """How much was looked at, since the gateway's start."""

    requests: int = 0
    prompt_tokens: int = 0
    sampled_requests: int = 0
    sampled_prompt_tokens: int = 0
    uncounted_requests: int = 0
    """In the sample and not counted: longer than the shadow's pool, or refused without the rules."""
    dropped_requests: int = 0
    """Not looked at because too many waited."""


class Savings(Collector):
    """All sums of one gateway."""

    def __init__(self, sampling: float) -> None:
        self.sampling = sampling
        self.size = SampleSize()
        self._rules: dict[tuple[str, Mode], RuleSavings] = {}

    def of(self, rule: str, mode: Mode) -> RuleSavings:
        """Return the sums of a rule, from nothing on."""
        return self._rules.setdefault((rule, mode), RuleSavings())

    def credit(self, rule: str | None, mode: Mode, num_tokens: int) -> None:
        """Add what one request saved or, below 0, lost."""
        if num_tokens:
            savings = self.of(rule or NOBODY, mode)
            savings.saved_tokens += max(0, num_tokens)
            savings.lost_tokens += max(0, -num_tokens)

    def report(self) -> Json:
        """Print all sums; what was not sampled has no tokens, not 0 of them."""
        rules = sorted(self._rules.items())
        return {
            "object": "savings",
            "sampling": self.sampling,
            **asdict(self.size),
            "rules": [_printed(rule, mode, sums, self.sampling) for (rule, mode), sums in rules if rule],
            "unattributed": [_printed(None, mode, sums, self.sampling) for (rule, mode), sums in rules if not rule],
        }

    def collect(self) -> Iterator[Metric]:
        """Yield the series of the rules that were seen."""
        fired = CounterMetricFamily("prefixgate_rule_fired_requests", _FIRED, labels=_LABELS)
        sampled = CounterMetricFamily("prefixgate_rule_sampled_requests", _SAMPLED, labels=_LABELS)
        saved = CounterMetricFamily("prefixgate_rule_saved_tokens", _SAVED, labels=_LABELS)
        lost = CounterMetricFamily("prefixgate_rule_lost_tokens", _LOST, labels=_LABELS)
        for (rule, mode), sums in list(self._rules.items()):
            labels = (rule or "none", mode.value)
            if rule:
                fired.add_metric(labels, sums.fired_requests)
            if rule and sums.sampled_requests:
                sampled.add_metric(labels, sums.sampled_requests)
            if sums.sampled_requests or not rule:
                saved.add_metric(labels, sums.saved_tokens)
                lost.add_metric(labels, sums.lost_tokens)
        yield from (fired, sampled, saved, lost)
        yield CounterMetricFamily(
            "prefixgate_sampled_prompt_tokens", "Prompt tokens of the sample", self.size.sampled_prompt_tokens
        )


_LABELS = ("rule", "mode")
_FIRED = "Requests in which a rule changed something, or would have"
_SAMPLED = "Of those, requests in the sample"
_SAVED = "Tokens of the sample that are cached only because of a rule, or would have been"
_LOST = "Tokens of the sample that are not cached only because of a rule, or would not have been"


def _printed(rule: str | None, mode: Mode, sums: RuleSavings, sampling: float) -> Json:
    net = sums.saved_tokens - sums.lost_tokens
    is_known = rule is None or sums.sampled_requests > 0
    tokens = {
        "saved_tokens": sums.saved_tokens if is_known else None,
        "lost_tokens": sums.lost_tokens if is_known else None,
        "net_tokens": net if is_known else None,
        "extrapolated_net_tokens": round(net / sampling) if is_known and sampling else None,
    }
    if rule is None:
        return {"mode": mode.value, **tokens}
    requests = {"fired_requests": sums.fired_requests, "sampled_requests": sums.sampled_requests}
    return {"rule": rule, "mode": mode.value, **requests, **tokens}
