"""Our reasons in the words of OpenAI's and Anthropic's cache diagnostics; every endpoint takes them from here.

Both compare with a response that the client names, and know only what changed in a request. We compare with the nearest
cached text of the same tenant, so the named response only has to be one of the tenant's. What they have no word for, an
eviction or a cut of ours, is `unavailable`: the request did not change.

Source: https://developers.openai.com/api/docs/guides/prompt-caching/diagnostics,
https://platform.claude.com/docs/en/build-with-claude/cache-diagnostics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gateway.explain.cuts import TEXT_REASONS, cut_tokens
from gateway.explain.places import Kind
from gateway.explain.records import PromptRecord
from prefixcache.interface import Explanation, Reason

Json = dict[str, Any]


class _Words(NamedTuple):
    openai: str
    anthropic: str


_CHANGED: Mapping[Kind | None, _Words | None] = {
    Kind.SYSTEM: _Words("input_changed", "system_changed"),
    Kind.TOOLS: _Words("tools_changed", "tools_changed"),
    Kind.USER: _Words("input_changed", "messages_changed"),
    Kind.ASSISTANT: _Words("input_changed", "messages_changed"),
    Kind.TOOL: _Words("input_changed", "messages_changed"),
    Kind.TURN: _Words("input_changed", "messages_changed"),
    Kind.TEMPLATE: None,
    None: None,
}
"""Where the prompt differs -> their reasons; None: they have no word for it, or it is not known."""
_REUSED = frozenset({Reason.HIT, Reason.COPIED, Reason.SHARE_CAP, Reason.NEVER_CACHED, Reason.BELOW_MIN_REUSE})
"""Reasons that, without a difference, mean that the prompt only goes on behind the cached text."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is to be said of a request, in nobody's words yet."""

    is_hit: bool
    """What the tenant had sent before was reused."""
    kind: Kind | None
    """Where it differs from the nearest one."""
    num_missed_tokens: int
    """Of the named response's prompt, behind the difference."""


def finding_of(explanation: Explanation, record: PromptRecord, baseline: PromptRecord) -> Finding:
    """Sum up an explanation that was made without other scopes."""
    missed = min(record.num_prompt_tokens, baseline.num_prompt_tokens) - explanation.num_common_tokens
    differs = explanation.diverging_token is not None
    is_of_client = differs and explanation.reason in TEXT_REASONS and cut_tokens(explanation, record) is None
    return Finding(
        is_hit=not differs and explanation.reason in _REUSED and explanation.num_common_tokens > 0,
        kind=record.place.kind if is_of_client and record.place else None,
        num_missed_tokens=max(0, missed),
    )


def openai_diagnostics(finding: Finding | None, *, is_found: bool = True) -> Json:
    """Print `prompt_cache_diagnostics`; no finding: there is nothing to tell now."""
    if not is_found:
        return {"type": "comparison_response_not_found"}
    if finding is not None and finding.is_hit:
        return {"type": "cache_hit"}
    words = _CHANGED[finding.kind] if finding else None
    if finding is None or words is None:
        return {"type": "unavailable"}
    return {"type": "cache_miss", "reason": words.openai, "cache_missed_tokens": finding.num_missed_tokens}


def anthropic_diagnostics(finding: Finding | None, *, is_found: bool = True) -> Json | None:
    """Print `diagnostics`; None: nothing differs."""
    if not is_found:
        return {"cache_miss_reason": {"type": "previous_message_not_found"}}
    if finding is not None and finding.is_hit:
        return None
    words = _CHANGED[finding.kind] if finding else None
    if finding is None or words is None:
        return {"cache_miss_reason": {"type": "unavailable"}}
    return {"cache_miss_reason": {"type": words.anthropic, "cache_missed_input_tokens": finding.num_missed_tokens}}
