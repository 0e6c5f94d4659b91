"""Takes declared text out of the system head and the tools' descriptions and leaves a stable name in its place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gateway.conversation import Content, Conversation, texts_of
from gateway.normalize.head_text import split_fences, with_texts
from gateway.normalize.schema import change_schemas
from gateway.normalize.volatile_patterns import Finder

_NAME = re.compile(r"\[see [\w.:-]{1,64}-\d{1,3}\]")
_NOT_IN_NAMES = re.compile(r"[^\w.:-]")
_MAX_MOVES = 128
"""In one head; with more of them it would be unreadable, and stays as it is."""


class Mover(NamedTuple):
    """What shall move, and the word that names it."""

    word: str
    find: Finder


@dataclass(frozen=True, slots=True)
class MovedHead:
    """A head without its declared text."""

    head: Conversation
    values: Mapping[str, str]
    """Name -> text, in the order of the head: `{"clock-1": "2026-11-03 09:14:07"}`."""


def move_from_head(head: Conversation, movers: Sequence[Mover]) -> MovedHead:
    """Take out all that movers find in system text and tool descriptions, outside fences.

    A text between two places that move is looked at as a text of its own, so that looking again finds nothing more.
    """
    moves = _Moves(movers)
    try:
        messages = tuple(replace(message, content=moves.from_content(message.content)) for message in head.messages)
        tools = tuple(moves.from_tool(tool) for tool in head.tools)
    except _TooManyError:
        return MovedHead(head, {})
    if not moves.values:
        return MovedHead(head, {})
    return MovedHead(replace(head, messages=messages, tools=tools), moves.values)


class _TooManyError(Exception):
    """More was found than can move."""


class _Moves:
    def __init__(self, movers: Sequence[Mover]) -> None:
        self._movers = [Mover(_NOT_IN_NAMES.sub("_", mover.word)[:64], mover.find) for mover in movers]
        self._counts: Counter[str] = Counter()
        self._num_found = 0
        self.values: dict[str, str] = {}

    def from_content(self, content: Content) -> Content:
        texts, fence = [], None
        for text in texts_of(content):
            changed, fence = self._from_text(text, fence)
            texts.append(changed)
        return with_texts(content, texts)

    def from_tool(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        function = self._from_description(tool["function"])
        if "parameters" in function:
            parameters = change_schemas(function["parameters"], self._from_description)
            if parameters is not function["parameters"]:
                function = {**function, "parameters": parameters}
        return tool if function is tool["function"] else {**tool, "function": function}

    def _from_description(self, fields: dict[str, Any]) -> dict[str, Any]:
        text = fields.get("description")
        if not isinstance(text, str):
            return fields
        changed, _ = self._from_text(text, None)
        return fields if changed == text else {**fields, "description": changed}

    def _from_text(self, text: str, fence: str | None) -> tuple[str, str | None]:
        runs, fence = split_fences(text, fence)
        return "".join(run if fenced else self._from_run(run) for run, fenced in runs), fence

    def _from_run(self, run: str) -> str:
        """Move from what stands between names that an earlier run left."""
        pieces, end = [], 0
        for name in _NAME.finditer(run):
            pieces += [*self._split(run[end : name.start()]), name[0]]
            end = name.end()
        return "".join([*pieces, *self._split(run[end:])])

    def _split(self, text: str) -> Iterator[str]:
        """Yield what stays, with names for what moves."""
        for mover in self._movers:
            if spans := list(mover.find(text)):
                self._num_found += len(spans)
                if self._num_found > _MAX_MOVES:
                    raise _TooManyError
                end = 0
                for start, stop in spans:
                    yield from self._split(text[end:start])
                    yield self._name(mover.word, text[start:stop])
                    end = stop
                yield from self._split(text[end:])
                return
        yield text

    def _name(self, word: str, value: str) -> str:
        self._counts[word] += 1
        name = f"{word}-{self._counts[word]}"
        self.values[name] = value
        return f"[see {name}]"
