"""`context_management` of an Anthropic body: what the client wants cleared of its own chat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from gateway import checks
from gateway.context import clearing, thoughts
from gateway.context.asked import ContextAsked
from gateway.context.clearing import ToolClearing

FIELD = "context_management"
COMPACT = "compact_20260112"
LEAST_CUT_ABOVE = 1000
"""Tokens: a chat that is cut above less would be cut at nearly each turn."""
_DEFAULT_CUT_ABOVE = 150_000
MOST = 2**31 - 1
"""Of a number in such a field."""
_MAX_NAMES = 1000

Json = Mapping[str, Any]


def asked_context(fields: Json) -> ContextAsked:
    """Check what a body asks for.

    Raises: InvalidRequestError: what is wrong first, or what this server cannot do.
    """
    if FIELD not in fields:
        return ContextAsked()
    wanted = checks.mapping(FIELD, fields[FIELD])
    _known(FIELD, wanted, ("edits",))
    edits = checks.sequence(f"{FIELD}.edits", wanted.get("edits", []), most=len(_EDITS))
    asked, seen = ContextAsked(is_asked=True), set[str]()
    for index, entry in enumerate(edits):
        field = f"{FIELD}.edits[{index}]"
        edit = checks.mapping(field, entry)
        kind = checks.one_of(f"{field}.type", edit.get("type"), tuple(_EDITS))
        if kind in seen:
            checks.refuse(f"{field}.type", kind, "each type once")
        seen.add(kind)
        asked = _EDITS[kind](asked, field, {name: value for name, value in edit.items() if value is not None})
    return asked


def _clear_tool_uses(asked: ContextAsked, field: str, edit: Json) -> ContextAsked:
    _known(field, edit, ("type", "trigger", "keep", "clear_at_least", "exclude_tools", "clear_tool_inputs"))
    wanted = ToolClearing()
    if "trigger" in edit:
        unit, value = _amount(f"{field}.trigger", edit["trigger"], "input_tokens", "tool_uses")
        of_tokens: Literal["input_tokens", "tool_uses"] = "input_tokens" if unit == "input_tokens" else "tool_uses"
        wanted = replace(wanted, trigger=value, trigger_unit=of_tokens)
    if "keep" in edit:
        wanted = replace(wanted, keep=_amount(f"{field}.keep", edit["keep"], "tool_uses")[1])
    if "clear_at_least" in edit:
        least = _amount(f"{field}.clear_at_least", edit["clear_at_least"], "input_tokens")[1]
        wanted = replace(wanted, clear_at_least=least)
    if "exclude_tools" in edit:
        wanted = replace(wanted, exclude_tools=_names(f"{field}.exclude_tools", edit["exclude_tools"]))
    inputs = edit.get("clear_tool_inputs", False)
    if not isinstance(inputs, bool):
        if not isinstance(inputs, list):
            checks.refuse(f"{field}.clear_tool_inputs", inputs, "true, false or an array of names of tools")
        inputs = _names(f"{field}.clear_tool_inputs", inputs)
    return replace(asked, tools=replace(wanted, clear_inputs=inputs))


def _clear_thinking(asked: ContextAsked, field: str, edit: Json) -> ContextAsked:
    _known(field, edit, ("type", "keep"))
    field, keep = f"{field}.keep", edit.get("keep", {"type": "thinking_turns", "value": 1})
    if keep in ("all", {"type": "all"}):
        return asked
    if not isinstance(keep, dict):
        checks.refuse(field, keep, '"all" or {"type": "thinking_turns", "value": how many turns}')
    return replace(asked, thinking_turns=_amount(field, keep, "thinking_turns", least=1)[1])


def _compact(asked: ContextAsked, field: str, edit: Json) -> ContextAsked:
    """Cut as the policy does, which sends a summary in the place of old turns; the client goes on sending all of it."""
    _known(field, edit, ("type", "trigger", "instructions", "pause_after_compaction"))
    if "instructions" in edit:
        wanted = "it left out: here a summary is written as the operator has it"
        checks.refuse(f"{field}.instructions", edit["instructions"], wanted)
    pauses = f"{field}.pause_after_compaction"
    if checks.boolean(pauses, edit.get("pause_after_compaction", False)):
        checks.refuse(pauses, True, "false: the summary is made with the answer, and is no answer by itself")
    trigger = edit.get("trigger", {"type": "input_tokens", "value": _DEFAULT_CUT_ABOVE})
    above = _amount(f"{field}.trigger", trigger, "input_tokens", least=LEAST_CUT_ABOVE)[1]
    return replace(asked, cuts=True, cut_above=above)


_EDITS: Mapping[str, Callable[[ContextAsked, str, Json], ContextAsked]] = {
    clearing.KIND: _clear_tool_uses,
    thoughts.KIND: _clear_thinking,
    COMPACT: _compact,
}


def _amount(field: str, value: object, *units: str, least: int = 0) -> tuple[str, int]:
    """Accept a number of something."""
    amount = checks.mapping(field, value)
    _known(field, amount, ("type", "value"))
    unit = checks.one_of(f"{field}.type", amount.get("type"), units)
    return unit, checks.integer(f"{field}.value", amount.get("value"), low=least, high=MOST)


def _names(field: str, value: object) -> frozenset[str]:
    names = checks.sequence(field, value, most=_MAX_NAMES)
    return frozenset(checks.text(f"{field}[{index}]", name) for index, name in enumerate(names))


def _known(field: str, value: Json, names: tuple[str, ...]) -> None:
    """Refuse a name that nothing here reads: what it asks for would silently not be done."""
    for name in value:
        if name not in names:
            checks.refuse(f"{field}.{name}", value[name], f"one of {', '.join(names)}")
