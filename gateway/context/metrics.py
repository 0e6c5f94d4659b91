"""What the context policy did, summed over requests."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from gateway.context.report import ContextReport
from gateway.histogram import Histogram
from gateway.normalize.rule import Mode

_EDIT_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5)
_MODES = (Mode.ON.value, Mode.AUDIT.value)
CLEARING = ("clear_tool_results", "stub_documents", "compress_tool_results", "summarize")
"""Kinds of edits that leave something out."""


class ContextMetrics:
    """Series of requests for which the policy is on or in audit mode; there they tell what would have been.

    Args:
        registry: that shows them.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"prefixgate_context_{name}", meaning, labels, registry=registry)

        self.requests = counter("requests", "Requests for which the context policy is on, or in audit mode", "mode")
        self.edited_requests = counter(
            "edited_requests", "Of those, requests of which something is left out, or would have been", "mode"
        )
        self.cuts = counter("cuts", "Of those, requests at which their chat was cut anew", "mode")
        self.cleared_tokens = counter("cleared_tokens", "Tokens left out, by estimate, by kind of edit", "mode", "type")
        self.added_tokens = counter(
            "added_tokens", "Tokens of summaries, passages and marks in their place, by estimate", "mode"
        )
        self._seconds = Histogram(
            "prefixgate_context_edit_seconds",
            "For what the context policy does to a chat, or would have done",
            buckets=_EDIT_SECONDS,
            registry=registry,
        )
        for mode in _MODES:  # 0, until there is one
            for one in (self.requests, self.edited_requests, self.cuts, self.added_tokens):
                one.labels(mode)
            for kind in CLEARING:
                self.cleared_tokens.labels(mode, kind)

    def count(self, report: ContextReport) -> None:
        """Count one request."""
        mode = report.mode.value
        self.requests.labels(mode).inc()
        self._seconds.observe(report.seconds)
        if report.is_new_cut:
            self.cuts.labels(mode).inc()
        if not report.edits:
            return
        self.edited_requests.labels(mode).inc()
        cleared = 0
        for edit in report.edits:
            if edit.kind in CLEARING and edit.cleared_tokens > 0:
                cleared += edit.cleared_tokens
                self.cleared_tokens.labels(mode, edit.kind).inc(edit.cleared_tokens)
        self.added_tokens.labels(mode).inc(max(0, cleared - report.cleared_tokens))
