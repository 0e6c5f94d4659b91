"""The `system`, `messages` and `tools` of an Anthropic body, checked into a neutral conversation.

The result is what an OpenAI client would have sent for the same chat, so both lead to the same tokens. Text is not touched.
`cache_control` is read elsewhere, and is no part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway import checks
from gateway.chat_messages import MAX_MESSAGES, MAX_NAME_CHARS, MAX_PARTS, MAX_TOOLS
from gateway.conversation import Content, Conversation, Message, Part, text_part
from gateway.document_parts import read_document_block
from gateway.errors import InvalidRequestError, shown
from gateway.tools import definitions

ROLES = ("user", "assistant")

_TOOL_FIELDS = frozenset({"name", "description", "input_schema", "cache_control", "type"})
_KEPT_FIELDS = ("model", "chat_template_kwargs")
"""Of the body: beside `metadata.user_id`, which tells conversations apart, the others change no token."""


def read_conversation(fields: Mapping[str, Any]) -> Conversation:
    """Check all that is said in a body.

    Raises: InvalidRequestError: the first thing that is wrong, with its place, such as `messages[3].content[0].text`.
    """
    if "messages" not in fields:
        raise InvalidRequestError("messages: missing, wanted an array of messages", param="messages")
    messages = [] if "system" not in fields else _system(fields["system"])
    for index, entry in enumerate(checks.sequence("messages", fields["messages"], most=MAX_MESSAGES, least=1)):
        messages += _turn(f"messages[{index}]", entry)
    kept = {name: fields[name] for name in _KEPT_FIELDS if name in fields}
    user_id = checks.mapping("metadata", fields.get("metadata", {})).get("user_id")
    if user_id is not None:
        kept["user"] = checks.text("metadata.user_id", user_id)
    effort = checks.mapping("output_config", fields.get("output_config", {})).get("effort")
    if effort is not None:
        kept["reasoning_effort"] = checks.text("output_config.effort", effort)
    return Conversation(tuple(messages), _tools(fields.get("tools")), kept)


def _system(value: object) -> list[Message]:
    """No text at all is no message."""
    content = _texts("system", value)
    return [Message("system", content)] if content else []


def _turn(field: str, value: object) -> list[Message]:
    message = checks.mapping(field, value)
    role = checks.one_of(f"{field}.role", message.get("role"), ROLES)
    field, content = f"{field}.content", message.get("content")
    if isinstance(content, str):
        return [Message(role, content)]
    if not isinstance(content, list):
        checks.refuse(field, content, "a string or an array of parts")
    entries = checks.sequence(field, content, most=MAX_PARTS, least=0 if role == "assistant" else 1)
    blocks = [(f"{field}[{index}]", checks.mapping(f"{field}[{index}]", entry)) for index, entry in enumerate(entries)]
    return [_assistant(blocks)] if role == "assistant" else _user(blocks)


Blocks = list[tuple[str, dict[str, Any]]]
"""Each with its place."""


def _user(blocks: Blocks) -> list[Message]:
    """Every result of a tool is a message of its own; the texts between two of them are one."""
    messages: list[Message] = []
    texts: list[Part] = []
    for field, block in blocks:
        kind = _type(field, block, ("text", "tool_result", "document"))
        if kind != "tool_result":
            texts.append(_text(field, block) if kind == "text" else read_document_block(field, block))
            continue
        if texts:
            messages.append(Message("user", tuple(texts)))
            texts = []
        messages.append(_tool_result(field, block))
    return [*messages, Message("user", tuple(texts))] if texts else messages


def _tool_result(field: str, block: dict[str, Any]) -> Message:
    call_id = checks.text(f"{field}.tool_use_id", block.get("tool_use_id"))
    content = "" if block.get("content") is None else _texts(f"{field}.content", block["content"])
    failed = block.get("is_error") is not None and checks.boolean(f"{field}.is_error", block["is_error"])
    return Message("tool", content or "", {"tool_call_id": call_id, **({"is_error": True} if failed else {})})


def _assistant(blocks: Blocks) -> Message:
    texts: list[Part] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for field, block in blocks:
        kind = _type(field, block, ("text", "tool_use", "thinking", "redacted_thinking"))
        if kind == "text":
            texts.append(_text(field, block))
        elif kind == "thinking":
            thoughts.append(checks.text(f"{field}.thinking", block.get("thinking")))
        elif kind == "tool_use":
            calls.append(_tool_use(field, block))
        # What is redacted can be read by those who made it alone.
    fields: dict[str, Any] = {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
    if calls:
        fields["tool_calls"] = calls
    return Message("assistant", tuple(texts) or None, fields)


def _tool_use(field: str, block: dict[str, Any]) -> dict[str, Any]:
    call_id = checks.text(f"{field}.id", block.get("id"))
    arguments = checks.mapping(f"{field}.input", block.get("input"))
    checks.shallow(f"{field}.input", arguments)
    function = {"name": _name(f"{field}.name", block.get("name")), "arguments": orjson.dumps(arguments).decode()}
    return {"id": call_id, "type": "function", "function": function}


def _tools(value: object) -> tuple[Mapping[str, Any], ...]:
    if value is None:
        return ()
    tools: dict[str, Mapping[str, Any]] = {}
    for index, entry in enumerate(checks.sequence("tools", value, most=MAX_TOOLS)):
        tool = _tool(f"tools[{index}]", entry)
        name = tool["function"]["name"]
        if name in tools:
            checks.refuse(f"tools[{index}].name", name, "a name that no tool before it has")
        tools[name] = tool
    return tuple(tools.values())


def _tool(field: str, value: object) -> Mapping[str, Any]:
    """Check a tool of the client's; those that Anthropic runs itself are not here."""
    tool = checks.mapping(field, value)
    if tool.get("type") is not None:
        checks.one_of(f"{field}.type", tool["type"], ("custom",))
    function: dict[str, Any] = {"name": definitions.check_name(f"{field}.name", tool.get("name"))}
    if tool.get("description") is not None:
        function["description"] = checks.text(f"{field}.description", tool["description"])
    function["parameters"] = checks.mapping(f"{field}.input_schema", tool.get("input_schema"))
    function.update({name: entry for name, entry in tool.items() if name not in _TOOL_FIELDS})
    checks.shallow(field, function)
    return {"type": "function", "function": function}


def _texts(field: str, value: object) -> Content:
    """Accept a text, or parts that are texts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        checks.refuse(field, value, "a string or an array of parts")
    parts = []
    for index, entry in enumerate(checks.sequence(field, value, most=MAX_PARTS)):
        place = f"{field}[{index}]"
        part = checks.mapping(place, entry)
        _type(place, part, ("text",))
        parts.append(_text(place, part))
    return tuple(parts)


def _text(field: str, block: dict[str, Any]) -> Part:
    return text_part(checks.text(f"{field}.text", block.get("text")))


def _type(field: str, block: dict[str, Any], kinds: tuple[str, ...]) -> str:
    kind = block.get("type")
    if isinstance(kind, str) and kind in kinds:
        return kind
    name = f"{field}.type"
    raise InvalidRequestError(
        f"{name}: got {shown(kind)}, wanted {' or '.join(kinds)}: this server takes no images, audio or files",
        param=name,
    )


def _name(field: str, value: object) -> str:
    name = checks.text(field, value)
    if not 0 < len(name) <= MAX_NAME_CHARS:
        checks.refuse(field, value, f"1 to {MAX_NAME_CHARS} characters")
    return name
