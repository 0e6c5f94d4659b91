"""Old uses of tools are cleared where a client asks for it, in Anthropic's words and with as few changes as they allow.

Whenever a request exceeds the trigger, all uses but the last ones are cleared, if that is worth it; until the next time
nothing that was sent before changes. Whoever sends the same history gets the same form, with no memory of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gateway.context.fitted import Edit
from gateway.context.history import History
from gateway.context.placeholders import cleared_result
from gateway.context.units import Counter, Unit, is_request_point
from gateway.conversation import Conversation, Message, texts_of

KIND = "clear_tool_uses_20250919"
_WORTH_SHARE = 8
"""A request that exceeds a number of tokens would do so again at each turn: by default a clearing gains an eighth of it."""


@dataclass(frozen=True, slots=True)
class ToolClearing:
    """How a client wants it. Tokens are by estimate (`Counter`)."""

    trigger: int = 100_000
    """What a request must exceed."""
    trigger_unit: Literal["input_tokens", "tool_uses"] = "input_tokens"
    keep: int = 3
    """The last uses are not cleared."""
    clear_at_least: int | None = None
    """Tokens that a clearing must gain; None: as many as make it worth its cost, see `least`."""
    exclude_tools: frozenset[str] = frozenset()
    """Their uses are never cleared, and count neither for the trigger nor among those that are kept."""
    clear_inputs: bool | frozenset[str] = False
    """Whether arguments of calls go too, or of which tools."""

    @property
    def least(self) -> int:
        """Tokens that a clearing gains, and at least one: uses that are shorter than what takes their place stay."""
        by_default = self.trigger // _WORTH_SHARE if self.trigger_unit == "input_tokens" else 0
        return max(1, by_default if self.clear_at_least is None else self.clear_at_least)

    def clears_input(self, tool: str) -> bool:
        """Whether arguments of this tool's calls go."""
        return self.clear_inputs if isinstance(self.clear_inputs, bool) else tool in self.clear_inputs


@dataclass(frozen=True, slots=True)
class Cleared:
    """A conversation without what was cleared."""

    conversation: Conversation
    edits: tuple[Edit, ...] = ()
    """None: nothing was, and it is the same object."""
    is_new: bool = False
    """Whether something was cleared at this very request."""

    @property
    def num_tokens(self) -> int:
        """How many fewer are sent."""
        return sum(edit.cleared_tokens for edit in self.edits)

    def then(self, later: Cleared) -> Cleared:
        """Tell of both steps, of which the later one was taken on what this one left."""
        return Cleared(later.conversation, (*self.edits, *later.edits), self.is_new or later.is_new)


@dataclass(frozen=True, slots=True)
class _Use:
    result: int
    """Index of the tool's message."""
    placeholder: str
    caller: int | None
    """Index of the message whose call loses its arguments; None: none does."""
    gain: int
    """Tokens."""


class _State:
    """Of the fold: what waits to be cleared, and what is."""

    def __init__(self, clearing: ToolClearing, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.cleared: list[_Use] = []
        self._clearing = clearing
        self._old: list[_Use] = []
        self._last = deque[_Use]()
        self._gain = 0

    def add(self, use: _Use) -> None:
        self._last.append(use)
        if len(self._last) > self._clearing.keep:
            self._old.append(self._last.popleft())
            self._gain += max(0, self._old[-1].gain)

    def clear(self) -> bool:
        """Clear what is old, where the trigger is exceeded and it is worth it."""
        clearing = self._clearing
        is_counted = clearing.trigger_unit == "tool_uses"
        measured = len(self._old) + len(self._last) if is_counted else self.num_tokens
        if measured <= clearing.trigger or self._gain < clearing.least:
            return False
        self.cleared += [use for use in self._old if use.gain > 0]
        self.num_tokens -= self._gain
        self._old, self._gain = [], 0
        return True


def clear_tool_uses(history: History, clearing: ToolClearing, count: Counter) -> Cleared:
    """Go through a history from its beginning, as its requests came, and clear at each that exceeds the trigger."""
    state, is_new = _State(clearing, history.head_tokens), False
    for index, unit in enumerate(history.units):
        state.num_tokens += sum(history.sizes[unit.start : unit.start + len(unit.messages)])
        for use in _uses(history, unit, clearing, count):
            state.add(use)
        is_new = is_request_point(history.units, index) and state.clear()
    if not state.cleared:
        return Cleared(history.conversation)
    edit = Edit(KIND, len(state.cleared), sum(use.gain for use in state.cleared))
    return Cleared(_without(history.conversation, state.cleared), (edit,), is_new)


def _uses(history: History, unit: Unit, clearing: ToolClearing, count: Counter) -> Iterator[_Use]:
    calls = {call.get("id"): call for call in unit.messages[0].fields.get("tool_calls") or ()}
    for index, message in enumerate(unit.messages, unit.start):
        tool = history.tool_names.get(index, "")
        if message.role != "tool" or tool in clearing.exclude_tools:
            continue
        text = "\n".join(texts_of(message.content))
        num_tokens = count(text)
        placeholder = cleared_result(tool, text, num_tokens)
        gain, caller = num_tokens - count(placeholder), None
        call = calls.get(message.fields.get("tool_call_id"))
        if call is not None and clearing.clears_input(tool):
            caller = unit.start
            gain += count(_arguments(call)) - count("{}")
        yield _Use(index, placeholder, caller, gain)


def _arguments(call: Any) -> str:
    return str((call.get("function") or {}).get("arguments", ""))


def _without(conversation: Conversation, uses: Sequence[_Use]) -> Conversation:
    messages = list(conversation.messages)
    for use in uses:
        result = messages[use.result]
        messages[use.result] = replace(result, content=use.placeholder)
        if use.caller is not None:
            messages[use.caller] = _without_input(messages[use.caller], result.fields["tool_call_id"])
    return replace(conversation, messages=tuple(messages))


def _without_input(message: Message, call_id: str) -> Message:
    calls = [
        {**call, "function": {**call["function"], "arguments": "{}"}} if call.get("id") == call_id else call
        for call in message.fields["tool_calls"]
    ]
    return replace(message, fields={**message.fields, "tool_calls": calls})
