"""Whether the context policy is why a prompt no longer agrees with what is cached."""

from __future__ import annotations

from gateway.explain.places import Kind
from gateway.explain.records import PromptRecord
from prefixcache.interface import Explanation, Reason

TEXT_REASONS = frozenset({Reason.NEVER_CACHED, Reason.DIVERGED, Reason.BELOW_MIN_REUSE, Reason.COPIED})
"""Reasons that another text at this place could have changed."""
_HEAD = frozenset({Kind.SYSTEM, Kind.TOOLS})
"""What no cut changes."""


def cut_tokens(explanation: Explanation, record: PromptRecord) -> int | None:
    """Tell how many tokens a cut at this very request left out; None: the difference is not a cut's."""
    is_of_text = explanation.diverging_token is not None and explanation.reason in TEXT_REASONS
    if not is_of_text or record.cut_tokens is None:
        return None
    place = record.place
    return None if place is not None and place.kind in _HEAD else record.cut_tokens
