"""`truncation` and `context_management` of a body of OpenAI's Responses: a long chat may be cut.

Both ask for the policy: it does not drop the oldest item at each turn, which would cost the cache every prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway import checks
from gateway.context.asked import ContextAsked
from gateway.messages_context import LEAST_CUT_ABOVE, MOST

_FIELD = "context_management"
_THRESHOLD = "compact_threshold"


def asked_context(fields: Mapping[str, Any]) -> ContextAsked:
    """Check what a body asks for.

    Raises: InvalidRequestError: what is wrong first.
    """
    truncation = checks.one_of("truncation", fields.get("truncation", "disabled"), ("auto", "disabled"))
    entries = checks.sequence(_FIELD, fields.get(_FIELD, []), most=1)
    cuts = truncation == "auto" or bool(entries)
    above = _threshold(f"{_FIELD}[0]", entries[0]) if entries else 0
    return ContextAsked(cuts=cuts, cut_above=above, is_asked=cuts)


def _threshold(field: str, value: object) -> int:
    entry = checks.mapping(field, value)
    checks.one_of(f"{field}.type", entry.get("type"), ("compaction",))
    for name in entry:
        if name not in ("type", _THRESHOLD):
            checks.refuse(f"{field}.{name}", entry[name], f"one of type, {_THRESHOLD}")
    threshold = entry.get(_THRESHOLD)
    if threshold is None:
        return 0
    return checks.integer(f"{field}.{_THRESHOLD}", threshold, low=LEAST_CUT_ABOVE, high=MOST)
