"""What a chat template writes around the texts that it is given, learned by showing it chats of unlikely words.

It serves to find texts in a rendering and to cut it; no prompt is made of it.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.errors import InvalidRequestError
from gateway.template import ChatTemplate

_MIN_HEADER_CHARS = 4
_MAX_HEADER_CHARS = 80
_MAX_SWITCHES = 64
_PROBE_WORD = re.compile(r"qx\w+", re.IGNORECASE)

_Chat = list[dict[str, Any]]

_TOOL = {
    "type": "function",
    "function": {
        "name": "qxlook",
        "description": "Qxlooks.",
        "parameters": {"type": "object", "properties": {"qxkey": {"type": "string", "description": "Qxkey."}}},
    },
}


@dataclass(frozen=True, slots=True)
class Wording:
    """Of one template."""

    headers: Mapping[str, str]
    """Role -> what stands directly before a content of that role, wherever in the chat; roles without are left out."""
    ending: str
    """What follows the last content of the assistant where no answer is asked for."""


def learn(template: ChatTemplate) -> Wording:
    """Show a template some chats; those that it refuses teach nothing."""
    system = _turn("system", 0)
    turns = [_turn(role, index) for index, role in enumerate(("user", "assistant", "user", "assistant", "user"), 1)]
    chats: list[tuple[_Chat, list[dict[str, Any]]]] = [
        ([system, *turns], []),
        (turns, []),
        ([system, *turns[:1], *_tool_round(), *turns[1:3]], [_TOOL]),
        ([*turns[:1], *_tool_round("Qxword8wq"), *turns[1:3]], [_TOOL]),
    ]
    before: dict[str, list[str]] = {}
    for messages, tools in chats:
        for role, text in _texts_before(template, messages, tools):
            before.setdefault(role, []).append(text)
    common = {role: _PROBE_WORD.split(_common_end(texts))[-1][-_MAX_HEADER_CHARS:] for role, texts in before.items()}
    headers = {role: text for role, text in common.items() if len(text) >= _MIN_HEADER_CHARS}
    return Wording(headers, _ending(template, turns[:2]))


class GenerationPrompts:
    """What a template writes where an answer begins, by its switches. Safe to use from several threads."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._known: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, switches: Mapping[str, Any]) -> tuple[str, ...]:
        """Return them, longest first: behind a user's turn and behind a tool's they may differ."""
        key = orjson.dumps(switches, option=orjson.OPT_SORT_KEYS)
        with self._lock:
            known = self._known.get(key)
        if known is None:
            user = _turn("user", 1)
            found = {self._behind([user], [], switches), self._behind([user, *_tool_round()], [_TOOL], switches)}
            known = tuple(sorted((prompt for prompt in found if prompt is not None), key=len, reverse=True))
            with self._lock:
                self._known[key] = known
                while len(self._known) > _MAX_SWITCHES:
                    self._known.popitem(last=False)
        return known

    def _behind(self, messages: _Chat, tools: list[dict[str, Any]], switches: Mapping[str, Any]) -> str | None:
        try:
            without = self._template.render(messages, tools, switches, add_generation_prompt=False)
            asked = self._template.render(messages, tools, switches)
        except InvalidRequestError:
            return None
        return asked[len(without) :] if asked.startswith(without) else None


def _turn(role: str, index: int) -> dict[str, Any]:
    return {"role": role, "content": f"Qxword{index}wq"}


def _tool_round(said: str = "") -> _Chat:
    call = {"id": "qxcall001", "type": "function", "function": {"name": "qxlook", "arguments": {"qxkey": "qxvalue"}}}
    return [
        {"role": "assistant", "content": said, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "qxcall001", "name": "qxlook", "content": "Qxword9wq"},
    ]


def _texts_before(template: ChatTemplate, messages: _Chat, tools: list[dict[str, Any]]) -> Sequence[tuple[str, str]]:
    """Give, for each content in turn, its role and what stands between it and the one before."""
    try:
        text = template.render(messages, tools)
    except InvalidRequestError:
        return []
    found, end = [], 0
    for message in messages:
        start = text.find(message["content"], end) if message["content"] else -1
        if start >= 0:
            found.append((message["role"], text[end:start]))
            end = start + len(message["content"])
    return found


def _common_end(texts: Sequence[str]) -> str:
    shortest = min(texts, key=len)
    size = 0
    while size < len(shortest) and len({text[-1 - size] for text in texts}) == 1:
        size += 1
    return shortest[len(shortest) - size :]


def _ending(template: ChatTemplate, messages: _Chat) -> str:
    try:
        text = template.render(messages, add_generation_prompt=False)
    except InvalidRequestError:
        return ""
    return text.rpartition(messages[-1]["content"])[2]
