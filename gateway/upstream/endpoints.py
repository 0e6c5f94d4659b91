"""The endpoints that cross, and those of them whose bodies the gateway reads as a chat.

A body that no rule changed crosses as it came. One that a rule changed is printed in the form of its endpoint, by as much of
it as the rules may change there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.chat_request import conversation_of
from gateway.conversation import Conversation, body_of, texts_of
from gateway.errors import InvalidRequestError
from gateway.messages_content import read_conversation as read_messages
from gateway.responses_content import read_conversation as read_responses
from gateway.stored_changes import ReadForm

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChatForm:
    """How a chat is read from a body and printed into it."""

    read: Callable[[Fields], Conversation]
    """Raises: InvalidRequestError: it is none that the gateway knows."""
    write: Callable[[Fields, Conversation], Fields] | None = None
    """Prints a canonical conversation in the place of that of a body; None: no rule runs."""
    rules: frozenset[str] | None = None
    """Those whose changes can be printed; None: all."""


@dataclass(frozen=True, slots=True)
class UpstreamEndpoint:
    """One path."""

    route: str
    form: ChatForm | None = None
    """None: what it says is the upstream's to read."""
    needs_model: bool = True
    generates: bool = True
    """Whether its answers should tell of tokens."""


def _chat_body(_: Fields, conversation: Conversation) -> Fields:
    return body_of(conversation)


def _messages_body(fields: Fields, conversation: Conversation) -> Fields:
    """Put the head's texts and the tools back where they came from; all else stays, `cache_control` in its place."""
    body = dict(fields)
    if "system" in fields:
        system = _system(fields["system"], conversation)
        body = {name: value for name, value in body.items() if name != "system" or system}
        body |= {"system": system} if system else {}
    if conversation.tools:
        body["tools"] = _tools(fields["tools"], conversation.tools)
    return body


def _system(value: str | list[Fields], conversation: Conversation) -> str | list[Fields]:
    head = conversation.messages[: conversation.num_head_messages]
    texts = texts_of(head[0].content) if head else []
    if isinstance(value, str) or not any(texts):
        return "".join(texts)
    # What is dropped stood at the start.
    return [{**part, "text": text} for part, text in zip(value[len(value) - len(texts) :], texts, strict=True)]


def _tools(tools: list[Fields], canonical: tuple[Mapping[str, Any], ...]) -> list[Fields]:
    """Order tools and their schemas; a mark of the cache belongs to a place, not to a tool."""
    by_name = {tool["name"]: tool for tool in tools}
    printed = []
    for place, (marked, tool) in enumerate(zip(tools, canonical, strict=True)):
        function = tool["function"]
        own = {**by_name[function["name"]], "input_schema": function["parameters"]}
        own.pop("cache_control", None)
        printed.append(own | {name: marked[name] for name in ("cache_control",) if name in tools[place]})
    return printed


def _responses_chat(fields: Fields) -> Conversation:
    """Read a body that says all that its prompt is made of."""
    for name in ("previous_response_id", "conversation", "prompt"):
        if fields.get(name) is not None:
            raise InvalidRequestError(f"{name}: what it stands for is the upstream's to know", param=name)
    return read_responses(fields)


_CHAT = ChatForm(conversation_of, _chat_body)
_MESSAGES = ChatForm(
    read_messages,
    _messages_body,
    frozenset(
        {
            "strip_client_header",
            "nfc_system",
            "nbsp_to_space_system",
            "drop_leading_bom",
            "trim_end_of_system",
            "crlf_to_lf_system",
            "canonical_schema_keywords",
            "sort_set_like_arrays",
            "canonical_tool_order",
        }
    ),
)

_RESPONSES = ChatForm(_responses_chat, rules=frozenset())

CHAT = UpstreamEndpoint("/v1/chat/completions", _CHAT)
ENDPOINTS = (
    CHAT,
    UpstreamEndpoint("/v1/messages", _MESSAGES),
    UpstreamEndpoint("/v1/messages/count_tokens", _MESSAGES, generates=False),
    UpstreamEndpoint("/v1/completions"),
    UpstreamEndpoint("/v1/responses", _RESPONSES),
    UpstreamEndpoint("/v1/embeddings"),
    UpstreamEndpoint("/tokenize", needs_model=False, generates=False),
    UpstreamEndpoint("/detokenize", needs_model=False, generates=False),
)
READ_FORMS: Mapping[str, ReadForm] = {
    endpoint.route: ReadForm(endpoint.form.read, endpoint.form.rules)
    for endpoint in ENDPOINTS
    if endpoint.form is not None and endpoint.generates
}
"""How the bodies that rules may change are read, by path."""
