"""The assistant's turn of an answer, put together from one piece or from many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.conversation import Message
from gateway.normalize.turns import REASONING_FIELDS

_CALL_TEXTS = ("name", "arguments")


class SpokenTurn:
    """What was said so far."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._calls: dict[int, dict[str, str]] = {}

    @property
    def text(self) -> str:
        """Its text."""
        return self._text("content")

    def add(self, said: Mapping[str, Any]) -> None:
        """Add a `message`, or the next `delta`; what is none of either is left out."""
        for name in ("content", *REASONING_FIELDS):
            if isinstance(said.get(name), str):
                self._texts.setdefault(name, []).append(said[name])
        calls = said.get("tool_calls")
        for place, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, dict):
                self._add_call(call, call.get("index", place))

    def message(self) -> Message:
        """Give it as a client should send it back: no text is null beside calls, and else empty."""
        fields: dict[str, Any] = {name: self._text(name) for name in REASONING_FIELDS if name in self._texts}
        calls = [self._calls[index] for index in sorted(self._calls)]
        if calls:
            fields["tool_calls"] = [
                {
                    "id": call.get("id", ""),
                    "type": "function",
                    "function": {name: call.get(name, "") for name in _CALL_TEXTS},
                }
                for call in calls
            ]
        return Message("assistant", self.text or (None if calls else ""), fields)

    def _text(self, name: str) -> str:
        return "".join(self._texts.get(name, ()))

    def _add_call(self, call: Mapping[str, Any], index: object) -> None:
        if type(index) is not int:
            return
        known = self._calls.setdefault(index, {})
        if isinstance(call.get("id"), str):
            known["id"] = call["id"]
        function = call.get("function")
        for name in _CALL_TEXTS:
            if isinstance(function, dict) and isinstance(function.get(name), str):
                known[name] = known.get(name, "") + function[name]
