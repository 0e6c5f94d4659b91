"""The body of `POST /v1/messages`, checked into the same values as a chat of OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway import checks
from gateway.chat_request import MAX_LENGTH, ChatRequest, check_stops, json_object
from gateway.context.asked import ContextAsked
from gateway.conversation import Conversation
from gateway.errors import InvalidRequestError
from gateway.field_names import request_under
from gateway.messages_cache_control import retention_of
from gateway.messages_content import read_conversation
from gateway.messages_context import asked_context
from gateway.tools.choice import read_anthropic

_SAME = frozenset({"model", "max_tokens", "temperature", "top_p", "top_k", "stream", "diagnostics"})
"""Fields that mean what OpenAI's chat means by them."""
_OWN = frozenset(
    {
        "messages",
        "system",
        "tools",
        "tool_choice",
        "stop_sequences",
        "metadata",
        "cache_control",
        "thinking",
        "output_config",
        "context_management",
    }
)
_EXTENSIONS = frozenset({"chat_template_kwargs", "seed", "ignore_eos"})
_UNSUPPORTED = ("mcp_servers", "container", "compaction")
"""An answer that silently lacks what these ask for would be worse than a refusal."""
_NAMES = {"response_format.json_schema": "output_config.format", "response_format": "output_config.format"}
"""A chat's name of what is checked there -> the name here."""


def parse_messages_request(body: bytes) -> ChatRequest:
    """Check a body.

    Raises: InvalidRequestError: what is wrong first.
    """
    fields = json_object(body)
    if "max_tokens" not in fields:
        raise InvalidRequestError(
            "max_tokens: missing, wanted the number of tokens that may be generated", param="max_tokens"
        )
    _refuse_unsupported(fields)
    if "temperature" in fields:
        checks.number("temperature", fields["temperature"], low=0, high=1)
    if "top_k" in fields:
        checks.integer("top_k", fields["top_k"], low=0)
    options = {name: value for name, value in fields.items() if name in _SAME | _EXTENSIONS}
    config = checks.mapping("output_config", fields.get("output_config", {}))
    if config.get("format") is not None:
        options["response_format"] = _format(checks.mapping("output_config.format", config["format"]))
    request = request_under(_NAMES, options, lambda _: read_conversation(fields), num_body_bytes=len(body))
    unknown = tuple(name for name in fields if name not in _SAME | _OWN | _EXTENSIONS)
    # Clients always send a max_tokens, and often that of a large model: it bounds the answer and asks for nothing.
    return replace(
        request,
        stops=_stops(fields),
        unknown_fields=unknown,
        is_max_tokens_a_bound=True,
        retention=retention_of(fields),
        tool_choice=read_anthropic(fields),
        shows_thoughts=_shows_thoughts(fields),
        context=asked_context(fields),
    )


@dataclass(frozen=True, slots=True)
class CountRequest:
    """What is to be counted."""

    model: str
    conversation: Conversation
    context: ContextAsked


def parse_count_request(body: bytes) -> CountRequest:
    """Check the body of `count_tokens`.

    Raises: InvalidRequestError: what is wrong first.
    """
    fields = json_object(body)
    if "model" not in fields:
        raise InvalidRequestError("model: missing, wanted the id of the served model", param="model")
    _refuse_unsupported(fields)
    read_anthropic(fields)
    _shows_thoughts(fields)
    conversation = read_conversation(fields)
    retention_of(fields)
    return CountRequest(checks.text("model", fields["model"]), conversation, asked_context(fields))


def _refuse_unsupported(fields: Mapping[str, Any]) -> None:
    for name in _UNSUPPORTED:
        if fields.get(name):
            checks.refuse(name, fields[name], "it left out: this server does not support it")


def _stops(fields: Mapping[str, Any]) -> tuple[str, ...]:
    if "stop_sequences" not in fields:
        return ()
    value = fields["stop_sequences"]
    if not isinstance(value, list):
        checks.refuse("stop_sequences", value, "an array of strings")
    return check_stops("stop_sequences", value)


def _format(given: Mapping[str, Any]) -> dict[str, Any]:
    """Bring the form of an answer into a chat's form; Anthropic's schemas bind to the letter."""
    checks.one_of("output_config.format.type", given.get("type"), ("json_schema",))
    return {"type": "json_schema", "json_schema": {"schema": given.get("schema"), "strict": True}}


def _shows_thoughts(fields: Mapping[str, Any]) -> bool:
    """Whether thoughts are asked for; the model thinks as its template has it, so a budget changes nothing."""
    thinking = checks.mapping("thinking", fields.get("thinking", {"type": "disabled"}))
    if thinking.get("budget_tokens") is not None:
        checks.integer("thinking.budget_tokens", thinking["budget_tokens"], low=1, high=MAX_LENGTH)
    return checks.one_of("thinking.type", thinking.get("type"), ("enabled", "disabled", "adaptive")) != "disabled"
