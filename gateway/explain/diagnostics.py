"""Diagnostics in an answer, for a client that asks why its own request took no more from its own cache."""

from __future__ import annotations

import logging
from typing import Any

from gateway.backends.base import BackendError, Explainer
from gateway.explain.provider_shapes import Finding, anthropic_diagnostics, finding_of, openai_diagnostics
from gateway.explain.records import PromptRecord, PromptRecords
from gateway.explain.request import DiagnosticsRequest

logger = logging.getLogger(__name__)


class Diagnostics:
    """Fields for an answer's body. Tells nothing of other tenants: neither their texts nor their ids are known here."""

    def __init__(self, backend: Explainer, records: PromptRecords) -> None:
        self._backend = backend
        self._records = records

    def note(self, record: PromptRecord) -> None:
        """Remember a prompt: it may be asked about, or be named by a later one."""
        self._records.note(record)

    async def fields(self, wanted: DiagnosticsRequest, record: PromptRecord) -> dict[str, Any]:
        """Return what to add to the body; an engine that does not answer makes it `unavailable`, and no error."""
        fields: dict[str, Any] = {}
        if wanted.anthropic:
            fields["diagnostics"] = None
            if wanted.previous_message_id is not None:
                baseline = self._baseline(wanted.previous_message_id, record)
                finding = await self._finding(record, baseline)
                fields["diagnostics"] = anthropic_diagnostics(finding, is_found=baseline is not None)
        if wanted.comparison_response_id is not None:
            baseline = self._baseline(wanted.comparison_response_id, record)
            finding = await self._finding(record, baseline)
            fields["prompt_cache_diagnostics"] = openai_diagnostics(finding, is_found=baseline is not None)
        return fields

    def _baseline(self, completion_id: str, record: PromptRecord) -> PromptRecord | None:
        """Return the named one, if it is known and the tenant's own: both answers are the same."""
        baseline = self._records.find(completion_id)
        return baseline if baseline is not None and baseline.tenant_id == record.tenant_id else None

    async def _finding(self, record: PromptRecord, baseline: PromptRecord | None) -> Finding | None:
        if baseline is None:
            return None
        try:
            explained = await self._backend.explain_request(record.completion_id)
        except BackendError as error:
            logger.warning("no diagnostics: %s", error)
            return None
        await record.locate()
        return None if explained is None else finding_of(explained.explanation, record, baseline)
