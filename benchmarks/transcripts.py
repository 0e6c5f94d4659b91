"""Recorded chats of agents and their users, as the bodies that a client sent turn by turn.

Reads three public formats: tau-bench (a JSON array of `traj`), SWE-agent (`.traj`) and Claude Code (`.jsonl`). Whatever
lacks a system text or tools gets some, so that every perturbation has something to work on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]

SYSTEM = """\
You are a coding agent that works in the repository of its user.
Read before you write, change as little as you can, and run the tests after each change.
Say what you did in plain words. Never delete a file that you did not make.
When a tool fails, read its message, and try once more in another way before you ask.
"""


@dataclass(frozen=True)
class Transcript:
    """One chat. Each of its assistant turns was the answer to a request with all that stands before it."""

    messages: Sequence[Json]
    tools: Sequence[Json]

    @property
    def turns(self) -> list[int]:
        """Places of the assistant turns."""
        return [index for index, message in enumerate(self.messages) if message["role"] == "assistant" and index]

    def body(self, turn: int) -> Json:
        """The request that was answered by the message at this place."""
        return {"model": "replay", "messages": list(self.messages[:turn]), "tools": list(self.tools)}


def read_folder(folder: Path) -> dict[str, list[Transcript]]:
    """Read every set of a folder: its name -> its chats. Files of other kinds are passed over."""
    sets: dict[str, list[Transcript]] = {}
    for path in sorted(path for path in folder.rglob("*") if path.suffix in _READERS):
        chats = [messages for messages in _READERS[path.suffix](path) if len(messages) > 2]
        if chats:
            sets.setdefault(path.parent.name, []).extend(_complete(chats))
    return sets


def _complete(chats: list[list[Json]]) -> Iterator[Transcript]:
    tools = _tools(chats)
    for messages in chats:
        has_system = messages[0]["role"] == "system"
        yield Transcript(messages if has_system else [{"role": "system", "content": SYSTEM}, *messages], tools)


def _tools(chats: list[list[Json]]) -> list[Json]:
    """Declare every function that was called, with the arguments that were seen."""
    arguments: dict[str, dict[str, Json]] = {}
    for message in (message for messages in chats for message in messages):
        for call in message.get("tool_calls") or ():
            seen = arguments.setdefault(call["function"]["name"], {})
            try:
                values = json.loads(call["function"]["arguments"])
            except ValueError:
                continue
            for name, value in values.items():
                seen.setdefault(name, {"type": _type(value), "description": f"The {name} to use."})
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"Calls {name} and gives back what it said.",
                "parameters": {"type": "object", "properties": properties, "required": list(properties)[:1]},
            },
        }
        for name, properties in arguments.items()
    ]


def _type(value: object) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "string")


def _tau_bench(path: Path) -> Iterator[list[Json]]:
    entries = json.loads(path.read_text())
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and "traj" in entry:
            yield [{name: value for name, value in message.items() if name != "name"} for message in entry["traj"]]


def _swe_agent(path: Path) -> Iterator[list[Json]]:
    messages = []
    for entry in json.loads(path.read_text()).get("history") or ():
        message = {"role": entry["role"], "content": entry["content"]}
        if entry["role"] == "assistant" and entry.get("tool_calls"):
            message["tool_calls"] = [_called(call["id"], **_function(call)) for call in entry["tool_calls"]]
        if entry["role"] == "tool":
            message["tool_call_id"] = (entry.get("tool_call_ids") or [entry.get("tool_call_id")])[0]
        messages.append(message)
    yield messages


def _function(call: Json) -> Json:
    function = call["function"]
    arguments = function["arguments"]
    return {"name": function["name"], "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}


def _called(call_id: str, name: str, arguments: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _claude_code(path: Path) -> Iterator[list[Json]]:
    """Several lines are one message where they have its id."""
    messages: list[Json] = []
    last_id = None
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if entry.get("type") not in ("user", "assistant"):
            continue
        message = entry["message"]
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if entry["type"] == "user":
            messages += _user_messages(blocks)
            last_id = None
            continue
        if last_id is None or message["id"] != last_id:
            messages.append({"role": "assistant", "content": None})
        last_id = message["id"]
        _add_blocks(messages[-1], blocks)
    yield messages


def _user_messages(blocks: list[Json]) -> Iterator[Json]:
    for block in blocks:
        if block["type"] == "tool_result":
            yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": _text_of(block.get("content"))}
        elif block["type"] == "text":
            yield {"role": "user", "content": block["text"]}


def _text_of(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(block.get("text", "") for block in content)
    return content if isinstance(content, str) else ""


def _add_blocks(message: Json, blocks: list[Json]) -> None:
    for block in blocks:
        if block["type"] == "text":
            message["content"] = (message["content"] or "") + block["text"]
        elif block["type"] == "thinking":
            message["reasoning_content"] = message.get("reasoning_content", "") + block["thinking"]
        elif block["type"] == "tool_use":
            call = _called(block["id"], block["name"], json.dumps(block["input"], ensure_ascii=False))
            message.setdefault("tool_calls", []).append(call)


_READERS = {".json": _tau_bench, ".traj": _swe_agent, ".jsonl": _claude_code}
