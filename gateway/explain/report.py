"""All there is to say about why one request took no more from the cache, as the operator reads it."""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import Any

from gateway.backends.base import Explainer
from gateway.backends.control import ExplainedRequest
from gateway.explain.advice import Case, helpful_rule
from gateway.explain.cuts import TEXT_REASONS, cut_tokens
from gateway.explain.difference import Decoder, difference_of
from gateway.explain.records import PromptRecord, PromptRecords
from gateway.explain.sentences import sentence
from gateway.normalize.modes import RuleModes
from prefixcache.interface import Explanation

_DIGEST_BYTES = 16


class MissReports:
    """Brings together what the engine and the gateway remember of a request."""

    def __init__(
        self, backend: Explainer, records: PromptRecords, decoder: Decoder, modes: RuleModes, *, shows_content: bool
    ) -> None:
        self._backend = backend
        self._records = records
        self._decoder = decoder
        self._modes = modes
        self._shows_content = shows_content
        self._key = os.urandom(32)

    async def report(self, completion_id: str) -> dict[str, Any] | None:
        """Report on a request, for the operator; None: it is not known (any more).

        Raises: BackendUnavailableError: the engine does not answer.
        """
        record = self._records.find(completion_id)
        explained = await self._backend.explain_request(completion_id, reveal_other_scopes=True)
        if record is None or explained is None:
            return None
        await record.locate()
        explanation, place = explained.explanation, record.place
        position, cut = explanation.num_common_tokens, cut_tokens(explanation, record)
        block_size = self._backend.model_info().block_size
        return {
            "id": completion_id,
            "request_id": record.request_id,
            "tenant": record.tenant_id,
            "num_prompt_tokens": explanation.num_prompt_tokens,
            "num_cached_tokens": explanation.num_cached_tokens,
            "num_lost_tokens": explanation.num_prompt_tokens - explanation.num_cached_tokens,
            "reason": explanation.reason,
            "sentence": sentence(explanation, place, block_size=block_size, cut_tokens=cut),
            "block": explanation.block,
            "token": position,
            "diverges": explanation.diverging_token is not None,
            "region": None if place is None else {"owner": place.owner, "start": place.start, "end": place.end},
            "nearest": explained.nearest_request_id,
            "evictions_ago": explanation.evictions_ago,
            **self._sides(explanation, record),
            "context_cut": None if cut is None else {"cleared_tokens": cut},
            "rule": self._rule(explained, record) if cut is None else None,
        }

    def _sides(self, explanation: Explanation, record: PromptRecord) -> dict[str, Any]:
        """Text where the operator had content stored, else digests that tell only whether two sides are equal."""
        if self._shows_content:
            difference = difference_of(explanation, record.place, self._decoder)
            return {"common": difference.common, "prompt": difference.prompt, "cached": difference.cached}
        sides = {"prompt": explanation.prompt_ahead, "cached": explanation.cached_ahead}
        return {f"{name}_digest": self._digest(side) for name, side in sides.items()}

    def _digest(self, side: bytes) -> str | None:
        return blake2b(side, key=self._key, digest_size=_DIGEST_BYTES).hexdigest() if side else None

    def _rule(self, explained: ExplainedRequest, record: PromptRecord) -> dict[str, str] | None:
        explanation, place = explained.explanation, record.place
        if place is None or explanation.diverging_token is None or explanation.reason not in TEXT_REASONS:
            return None
        nearest = self._records.find(explained.nearest_request_id) if explained.nearest_request_id else None
        names = () if nearest is None else nearest.tool_names
        is_reordered = names != record.tool_names and sorted(names) == sorted(record.tool_names)
        case = Case(place.kind, difference_of(explanation, place, self._decoder), has_same_tools=is_reordered)
        modes = {name: choice.mode for name, choice in self._modes.resolved(record.tenant_id, record.route).items()}
        rule = helpful_rule(case, modes)
        return None if rule is None else {"name": rule, "mode": modes[rule]}
