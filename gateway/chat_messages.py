"""The `messages` and `tools` of a chat body, checked into a neutral conversation.

Lenient where clients echo what servers returned (null fields, empty lists), strict where a mistake would silently change
the prompt. Text is not touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway import checks
from gateway.conversation import Content, Message, Part
from gateway.document_parts import read_chat_file
from gateway.errors import InvalidRequestError
from gateway.tools import definitions

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_MESSAGES = 32_768
MAX_PARTS = 1024
MAX_TOOLS = 1024
MAX_TOOL_CALLS = 256
MAX_NAME_CHARS = 256

_CHECKED_APART = frozenset({"role", "content"})
_TEXT_PART_FIELDS = 2


def parse_messages(value: object) -> tuple[Message, ...]:
    """Check all messages.

    Raises: InvalidRequestError: the first thing that is wrong, with its place, such as `messages[3].content`.
    """
    entries = checks.sequence("messages", value, most=MAX_MESSAGES, least=1)
    return tuple(_message(f"messages[{index}]", entry) for index, entry in enumerate(entries))


def parse_tools(value: object) -> tuple[Mapping[str, Any], ...]:
    """Check that tools are named functions; their schemas are handed on as they are."""
    if value is None:
        return ()
    tools = []
    for index, entry in enumerate(checks.sequence("tools", value, most=MAX_TOOLS)):
        field = f"tools[{index}]"
        tool = checks.mapping(field, entry)
        checks.one_of(f"{field}.type", tool.get("type"), ("function",))
        function = checks.mapping(f"{field}.function", tool.get("function"))
        definitions.check_name(f"{field}.function.name", function.get("name"))
        definitions.check_parameters(f"{field}.function.parameters", function.get("parameters"))
        checks.shallow(field, tool)
        tools.append(tool)
    return tuple(tools)


def _message(field: str, value: object) -> Message:
    message = checks.mapping(field, value)
    role = checks.one_of(f"{field}.role", message.get("role"), ROLES)
    content = _content(f"{field}.content", message.get("content"), role)
    if message.get("name") is not None:
        _name(f"{field}.name", message["name"])
    if role == "tool":
        checks.text(f"{field}.tool_call_id", message.get("tool_call_id"))
    if message.get("tool_calls") is not None:
        _tool_calls(f"{field}.tool_calls", message["tool_calls"], role)
    rest = {name: entry for name, entry in message.items() if name not in _CHECKED_APART}
    checks.shallow(field, rest)
    return Message(role, content, rest)


def _content(field: str, value: object, role: str) -> Content:
    if isinstance(value, str):
        return value
    if value is None and role == "assistant":
        return None
    if not isinstance(value, list):
        checks.refuse(field, value, "a string or an array of parts")
    parts = checks.sequence(field, value, most=MAX_PARTS, least=0 if role == "assistant" else 1)
    return tuple(_part(f"{field}[{index}]", part) for index, part in enumerate(parts))


def _part(field: str, value: object) -> Part:
    """Check a part; whether the model takes its kind is the template's to say."""
    part = checks.mapping(field, value)
    kind = checks.text(f"{field}.type", part.get("type"))
    if kind == "text":
        checks.text(f"{field}.text", part.get("text"))
    if len(part) > _TEXT_PART_FIELDS:
        checks.shallow(field, part)
    return read_chat_file(field, part) if kind == "file" else part


def _tool_calls(field: str, value: object, role: str) -> None:
    calls = checks.sequence(field, value, most=MAX_TOOL_CALLS)
    if calls and role != "assistant":
        raise InvalidRequestError(f"{field}: got it in a message of role {role}, wanted it of assistant", param=field)
    for index, entry in enumerate(calls):
        call = checks.mapping(f"{field}[{index}]", entry)
        checks.text(f"{field}[{index}].id", call.get("id"))
        function = checks.mapping(f"{field}[{index}].function", call.get("function"))
        _name(f"{field}[{index}].function.name", function.get("name"))
        check_arguments(f"{field}[{index}].function.arguments", function.get("arguments"))


def check_arguments(field: str, value: object) -> str:
    """Check JSON in a text, which the template gets as an object; what is no JSON stays text and is not looked into."""
    text = checks.text(field, value)
    if text.count("{") + text.count("[") <= checks.MAX_DEPTH:
        return text  # nearly always, and without parsing it twice
    try:
        checks.shallow(field, orjson.loads(text))
    except orjson.JSONDecodeError as error:
        if "depth" in error.msg:  # deeper than orjson goes
            checks.refuse_depth(field)
    return text


def _name(field: str, value: object) -> None:
    if not 0 < len(checks.text(field, value)) <= MAX_NAME_CHARS:
        checks.refuse(field, value, f"1 to {MAX_NAME_CHARS} characters")
