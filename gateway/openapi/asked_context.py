"""What clients ask for about the context of their own chat."""

from __future__ import annotations

from gateway.context import clearing, thoughts
from gateway.messages_context import COMPACT, LEAST_CUT_ABOVE
from gateway.openapi.schema import FLAG, TEXT, Schema, any_of, array, body, one_of, whole

_INT32 = 2**31 - 1


def _closed(required: tuple[str, ...], **fields: Schema) -> Schema:
    """An object in which an unknown field is refused: what it asks for would silently not be done."""
    return {**body(required, **fields), "additionalProperties": False}


def _amount(*units: str, least: int = 0) -> Schema:
    return _closed(("type", "value"), type=one_of(*units), value=whole(least, _INT32))


_CLEAR_TOOL_USES = _closed(
    ("type",),
    type=one_of(clearing.KIND),
    trigger=_amount("input_tokens", "tool_uses"),
    keep=_amount("tool_uses"),
    clear_at_least=_amount("input_tokens"),
    exclude_tools=array(TEXT),
    clear_tool_inputs=any_of(FLAG, array(TEXT)),
)
_CLEAR_THINKING = _closed(
    ("type",),
    type=one_of(thoughts.KIND),
    keep=any_of(one_of("all"), _closed(("type",), type=one_of("all")), _amount("thinking_turns", least=1)),
)
_COMPACT = _closed(
    ("type",),
    type=one_of(COMPACT),
    trigger=_amount("input_tokens", least=LEAST_CUT_ABOVE),
    pause_after_compaction={"type": "boolean", "enum": [False]},
)
ASKED_EDITS: Schema = {
    **_closed((), edits=array(any_of(_CLEAR_TOOL_USES, _CLEAR_THINKING, _COMPACT), most=3)),
    "description": "What to leave out of the prompt; each type at most once.",
}
"""Of a message."""
ASKED_COMPACTION: Schema = {
    **array(
        _closed(("type",), type=one_of("compaction"), compact_threshold=whole(LEAST_CUT_ABOVE, _INT32)),
        most=1,
    ),
    "description": "Cut the conversation as the context policy does, above so many tokens.",
}
"""Of a response."""
