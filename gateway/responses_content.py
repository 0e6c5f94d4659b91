"""The `instructions`, `input` and `tools` of a body of OpenAI's Responses, checked into a neutral conversation.

The result is what a client of the chat endpoint would have sent for the same chat, so both lead to the same tokens. Text
is not touched. Ids and states of items are dropped: nothing is stored here that they could name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway import checks
from gateway.chat_messages import MAX_MESSAGES, MAX_NAME_CHARS, MAX_PARTS, MAX_TOOLS, check_arguments
from gateway.conversation import Content, Conversation, Message, Part, text_part
from gateway.document_parts import read_input_file
from gateway.errors import InvalidRequestError, shown
from gateway.tools import definitions

ROLES = ("user", "assistant", "system", "developer")

_ITEMS = ("message", "reasoning", "function_call", "function_call_output")
_TEXT_PARTS = ("input_text", "output_text")
_KEPT_FIELDS = (
    "model",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "chat_template_kwargs",
    "continue_final_message",
)
"""Of the body: those that change tokens, or tell conversations apart."""


def read_conversation(fields: Mapping[str, Any]) -> Conversation:
    """Check all that is said in a body.

    Raises: InvalidRequestError: the first thing that is wrong, with its place, such as `input[3].content[0].text`.
    """
    if "input" not in fields:
        raise InvalidRequestError("input: missing, wanted a string or an array of items", param="input")
    instructions = checks.text("instructions", fields.get("instructions", ""))
    messages = [Message("system", instructions)] if instructions else []
    given = fields["input"]
    if isinstance(given, str):
        messages.append(Message("user", given))
    elif isinstance(given, list):
        messages += _messages(checks.sequence("input", given, most=MAX_MESSAGES, least=1))
    else:
        checks.refuse("input", given, "a string or an array of items")
    kept = {name: fields[name] for name in _KEPT_FIELDS if name in fields}
    effort = checks.mapping("reasoning", fields.get("reasoning", {})).get("effort")
    if effort is not None:
        kept["reasoning_effort"] = checks.text("reasoning.effort", effort)
    return Conversation(tuple(messages), _tools(fields.get("tools", [])), kept)


@dataclass(slots=True)
class _Turn:
    """One of the assistant's, which comes as several items: first what it thought, then what it said, then its calls."""

    thoughts: list[str] = field(default_factory=list)
    content: Content = None
    calls: list[dict[str, Any]] = field(default_factory=list)

    def goes_on_with(self, kind: str) -> bool:
        """Whether an item is still of this turn."""
        return kind == "function_call" or not (self.calls or self.content is not None)

    def add(self, kind: str, place: str, item: dict[str, Any]) -> None:
        """Take an item."""
        if kind == "reasoning":
            self.thoughts += _thoughts(place, item)
        elif kind == "function_call":
            self.calls.append(_call(place, item))
        else:
            self.content = _said(place, item).content

    def message(self) -> Message:
        """Join the items."""
        fields: dict[str, Any] = {"reasoning_content": "\n".join(self.thoughts)} if self.thoughts else {}
        if self.calls:
            fields["tool_calls"] = self.calls
        return Message("assistant", self.content, fields)


def _messages(entries: list[Any]) -> list[Message]:
    messages: list[Message] = []
    turn: _Turn | None = None
    for index, entry in enumerate(entries):
        place = f"input[{index}]"
        item = checks.mapping(place, entry)
        kind = _kind(place, item)
        if kind == "reasoning" and item.get("content") in (None, []):
            continue  # only those who made it can read it
        is_assistants = kind in ("reasoning", "function_call") or item.get("role") == "assistant"
        if turn is not None and not (is_assistants and turn.goes_on_with(kind)):
            messages.append(turn.message())
            turn = None
        if is_assistants:
            turn = turn or _Turn()
            turn.add(kind, place, item)
        else:
            messages.append(_result(place, item) if kind == "function_call_output" else _said(place, item))
    return messages if turn is None else [*messages, turn.message()]


def _kind(place: str, item: dict[str, Any]) -> str:
    kind = item.get("type", "message")
    if isinstance(kind, str) and kind in _ITEMS:
        return kind
    name = f"{place}.type"
    why = "this server stores no items" if kind == "item_reference" else "this server runs no tools of its own"
    raise InvalidRequestError(f"{name}: got {shown(kind)}, wanted {' or '.join(_ITEMS)}: {why}", param=name)


def _said(place: str, item: dict[str, Any]) -> Message:
    role = checks.one_of(f"{place}.role", item.get("role"), ROLES)
    field, least = f"{place}.content", 0 if role == "assistant" else 1
    return Message(role, _content(field, item.get("content"), least=least, takes_documents=role == "user"))


def _result(place: str, item: dict[str, Any]) -> Message:
    call_id = checks.text(f"{place}.call_id", item.get("call_id"))
    return Message("tool", _content(f"{place}.output", item.get("output")) or "", {"tool_call_id": call_id})


def _call(place: str, item: dict[str, Any]) -> dict[str, Any]:
    call_id = checks.text(f"{place}.call_id", item.get("call_id"))
    name = _name(f"{place}.name", item.get("name"))
    arguments = check_arguments(f"{place}.arguments", item.get("arguments"))
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _thoughts(place: str, item: dict[str, Any]) -> list[str]:
    parts = checks.sequence(f"{place}.content", item["content"], most=MAX_PARTS)
    return [_text(f"{place}.content[{index}]", part, ("reasoning_text",))["text"] for index, part in enumerate(parts)]


def _content(name: str, value: object, *, least: int = 0, takes_documents: bool = False) -> Content:
    """Accept a text, or parts that are texts or name documents."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        checks.refuse(name, value, "a string or an array of parts")
    parts = checks.sequence(name, value, most=MAX_PARTS, least=least)
    read = _text_or_document if takes_documents else _text
    return tuple(read(f"{name}[{index}]", part, _TEXT_PARTS) for index, part in enumerate(parts))


def _text_or_document(place: str, value: object, kinds: tuple[str, ...]) -> Part:
    part = checks.mapping(place, value)
    document = read_input_file(place, part) if part.get("type") == "input_file" else None
    return document or _text(place, part, kinds)


def _text(place: str, value: object, kinds: tuple[str, ...]) -> Part:
    part = checks.mapping(place, value)
    kind = part.get("type")
    if kind == "refusal":  # words of an assistant all the same
        return text_part(checks.text(f"{place}.refusal", part.get("refusal")))
    if not isinstance(kind, str) or kind not in kinds:
        name = f"{place}.type"
        raise InvalidRequestError(
            f"{name}: got {shown(kind)}, wanted {' or '.join(kinds)}: this server takes no images, audio or files",
            param=name,
        )
    return text_part(checks.text(f"{place}.text", part.get("text")))


def _tools(value: object) -> tuple[Mapping[str, Any], ...]:
    entries = enumerate(checks.sequence("tools", value, most=MAX_TOOLS))
    return tuple(_tool(f"tools[{index}]", entry) for index, entry in entries)


def _tool(place: str, value: object) -> Mapping[str, Any]:
    """Check a function of the client's; those that OpenAI runs itself are not here."""
    tool = checks.mapping(place, value)
    if tool.get("type") != "function":
        name = f"{place}.type"
        raise InvalidRequestError(
            f"{name}: got {shown(tool.get('type'))}, wanted 'function': this server runs no tools of its own",
            param=name,
        )
    definitions.check_name(f"{place}.name", tool.get("name"))
    definitions.check_parameters(f"{place}.parameters", tool.get("parameters"))
    checks.shallow(place, tool)
    return {"type": "function", "function": {name: entry for name, entry in tool.items() if name != "type"}}


def _name(place: str, value: object) -> str:
    name = checks.text(place, value)
    if not 0 < len(name) <= MAX_NAME_CHARS:
        checks.refuse(place, value, f"1 to {MAX_NAME_CHARS} characters")
    return name
