"""Recorded chats, and what their later turns quote of earlier ones: an id, a number, a path that stood there first."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.context_chats import Chat, Json, Question
from benchmarks.transcripts import read_folder

_MOST_OF_TURN = 3
_MIN_DISTANCE = 6
"""Messages between the last time that something was said and its quote."""
_NAME = re.compile(r"[\w./@#-]*\d[\w./@#-]*")
_MIN_CHARS = 5


def read_chats(folder: Path) -> dict[str, list[Chat]]:
    """Read every set of a folder, each chat with what it quotes."""
    return {
        name: [_chat(name, transcript.messages, transcript.tools) for transcript in transcripts]
        for name, transcripts in read_folder(folder).items()
    }


def _chat(name: str, messages: Sequence[Json], tools: Sequence[Json]) -> Chat:
    chat = Chat(name, tools, [{**message, "content": message.get("content") or ""} for message in messages])
    last_said: dict[str, int] = {}
    sources: dict[str, str] = {}
    for place, message in enumerate(chat.messages):
        names = dict.fromkeys(_names(message))
        if message["role"] == "assistant":
            old = [
                found
                for found in names
                if place - last_said.get(found, place) >= _MIN_DISTANCE and sources[found] in ("user", "tool")
            ]
            if old:
                chat.questions[place] = [Question(found, "quote", is_late=True) for found in old[:_MOST_OF_TURN]]
        for found in names:
            last_said[found] = place
            sources.setdefault(found, message["role"])
    return chat


def _names(message: Json) -> Iterator[str]:
    calls = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    for text in (str(message["content"]), *map(_unquoted, calls)):
        found = (name.strip("./-") for name in _NAME.findall(text))
        yield from (name for name in found if len(name) >= _MIN_CHARS)


def _unquoted(arguments: str) -> str:
    """Give the values of a call's arguments as they were before they became JSON."""
    try:
        values = json.loads(arguments)
    except ValueError:
        return arguments
    return "\n".join(map(str, values.values())) if isinstance(values, dict) else arguments
