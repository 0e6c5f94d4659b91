"""What is told of the context policy, wherever it is told."""

from __future__ import annotations

from gateway.openapi.schema import COUNT, TEXT, Schema, answer, array, nullable, one_of

EDIT: Schema = answer(type=TEXT, count=COUNT, cleared_input_tokens={"type": "integer"})
"""With more fields for some types; below 0, where an edit adds tokens."""
_FIELDS: dict[str, Schema] = {
    "applied_edits": array(EDIT),
    "original_input_tokens": COUNT,
    "input_tokens": COUNT,
}
CONTEXT_MANAGEMENT: Schema = {
    **answer(**_FIELDS),
    "description": "What the context policy left out of the prompt; absent where it is off and its client asks for nothing.",
}
CONTEXT_RECORD: Schema = {
    **nullable(answer(mode=one_of("on", "audit"), **_FIELDS)),
    "description": "What the context policy left out, or in audit mode would have; null where it is off.",
}
