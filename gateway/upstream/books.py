"""What is kept of an answered chat: what was predicted and what reported, what it differed from, and what rules saved."""

from __future__ import annotations

import asyncio

from gateway.accounting.accounting import Accounting, Origin
from gateway.backends.base import Admission
from gateway.explain.records import PromptRecord, PromptRecords
from gateway.recent import RecentRequests
from gateway.reception import Arrival
from gateway.upstream.chat import Outgoing
from gateway.upstream.estimate import corrected
from gateway.upstream.foresight import BLOCK_SIZE, Foreseen, Foresight
from gateway.upstream.usage import AnswerReader
from prefixcache.interface import Reason


class Books:
    """Of one gateway.

    Args:
        foresight: predicts.
        accounting: counts what rules saved.
    """

    def __init__(self, foresight: Foresight, accounting: Accounting) -> None:
        self.records = PromptRecords()
        self.recent = RecentRequests()
        self.foresight = foresight
        self.accounting = accounting

    def look(self, arrival: Arrival, outgoing: Outgoing, upstream: str) -> asyncio.Task[Foreseen | None] | None:
        """Begin to predict what an upstream will reuse; None: it is not read as a chat."""
        if outgoing.origin is None:
            return None
        conversation = outgoing.origin.normalized.conversation
        looking = self.foresight.look(conversation, len(outgoing.body), arrival.identity, upstream)
        return asyncio.create_task(looking)

    def note(self, arrival: Arrival, outgoing: Outgoing, foreseen: Foreseen | None, reader: AnswerReader) -> None:
        """Take a chat whose answer is complete."""
        entry, origin, reported = arrival.entry, outgoing.origin, reader.num_cached_tokens
        completion_id = reader.completion_id or entry.request_id
        self.recent.note(entry.request_id, completion_id)
        if origin is None:
            return
        if foreseen is None:
            self.accounting.count_fired(origin.normalized, reader.num_prompt_tokens or 0)
            return
        self.foresight.learn(foreseen, completion_id, reported, reader.num_prompt_tokens)
        entry.reasons = _reasons(foreseen, reported)
        record = _record_of(arrival, origin, foreseen, completion_id)
        self.records.note(record)
        prediction = foreseen.prediction
        # By whole blocks and without answers, as the caches that it is compared with.
        cached = prediction.num_tokens
        if reported is not None:
            cached = min(cached, reported // BLOCK_SIZE * BLOCK_SIZE)
        receipt = self.accounting.admit(
            prediction.prompt,
            origin,
            Admission(len(prediction.prompt.token_ids), cached, {}, main_reason(foreseen, reported)),
            identity=arrival.identity,
            model=self.foresight.model_info(),
            record=record,
        )
        if receipt is not None:
            self.accounting.end(receipt)


def _record_of(arrival: Arrival, origin: Origin, foreseen: Foreseen, completion_id: str) -> PromptRecord:
    conversation = origin.normalized.conversation
    explanation = foreseen.prediction.explanation
    return PromptRecord(
        completion_id=completion_id,
        request_id=arrival.entry.request_id,
        tenant_id=arrival.entry.tenant_id,
        route=arrival.entry.endpoint,
        num_prompt_tokens=explanation.num_prompt_tokens,
        num_common_tokens=explanation.num_common_tokens,
        roles=tuple(message.role for message in conversation.messages),
        tool_names=tuple(str(tool["function"]["name"]) for tool in conversation.tools),
        rendered=foreseen.rendered,
    )


def main_reason(foreseen: Foreseen, num_reported: int | None) -> Reason:
    """Say in one word why no more was reused, or will be; what fills no block is not missed."""
    explanation = foreseen.prediction.explanation
    cached = explanation.num_cached_tokens if num_reported is None else num_reported
    return corrected(explanation, cached, BLOCK_SIZE).reason


def _reasons(foreseen: Foreseen, num_reported: int | None) -> dict[str, int]:
    """Count the prompt's full blocks that were reused, and all others under the main reason."""
    explanation = foreseen.prediction.explanation
    cached = explanation.num_cached_tokens if num_reported is None else num_reported
    num_blocks = -(-explanation.num_prompt_tokens // BLOCK_SIZE)
    num_hit = min(num_blocks, cached // BLOCK_SIZE)
    counts: dict[str, int] = {}
    for reason, count in ((Reason.HIT, num_hit), (main_reason(foreseen, num_reported), num_blocks - num_hit)):
        if count:
            counts[reason.value] = counts.get(reason.value, 0) + count
    return counts
