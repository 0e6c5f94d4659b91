"""The body of `POST /v1/responses`, checked into the same values as a chat, and what the answer repeats of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway import checks
from gateway.chat_request import ChatRequest, json_object
from gateway.errors import InvalidRequestError, shown
from gateway.explain.request import DiagnosticsRequest
from gateway.field_names import request_under
from gateway.responses_content import read_conversation
from gateway.responses_context import asked_context
from gateway.tools.choice import check_kind

_SAME = frozenset(
    {
        "model",
        "temperature",
        "top_p",
        "stream",
        "prompt",
        "parallel_tool_calls",
        "prompt_cache_options",
        "diagnostics",
        "chat_template_kwargs",
        "continue_final_message",
        "stop",
        "seed",
        "top_k",
        "min_p",
        "ignore_eos",
        "structured_outputs",
        "logit_bias",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
    }
)
"""Fields that mean what a chat means by them; those from `diagnostics` on are extensions."""
_OWN = frozenset(
    {
        "input",
        "instructions",
        "tools",
        "tool_choice",
        "max_output_tokens",
        "top_logprobs",
        "include",
        "text",
        "reasoning",
        "metadata",
        "user",
        "prompt_cache_key",
        "safety_identifier",
        "truncation",
        "context_management",
        "store",
        "background",
        "previous_response_id",
        "conversation",
        "stream_options",
    }
)
_NAMES = {
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "tool_choice.function": "tool_choice",
    "max_tokens": "max_output_tokens",
}
"""A chat's name of what is checked there -> the name here."""
_LOGPROBS = "message.output_text.logprobs"
_INCLUDED = (_LOGPROBS, "reasoning.encrypted_content")
"""Reasoning is never encrypted here: it is in the answer, for whoever sends it back."""
_MAX_INCLUDED = 16
_MAX_METADATA = 64


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """What a client asked for; every value is in its bounds."""

    chat: ChatRequest
    echo: Mapping[str, Any]
    """Fields of the answer that repeat the request's."""

    @property
    def model(self) -> str:
        """The one that is asked for."""
        return self.chat.model

    @property
    def stream(self) -> bool:
        """Whether the answer comes in events."""
        return self.chat.stream

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end the answer."""
        return self.chat.stops

    @property
    def diagnostics(self) -> DiagnosticsRequest | None:
        """What to tell about the cache."""
        return self.chat.diagnostics

    @property
    def unknown_fields(self) -> tuple[str, ...]:
        """Ignored, and counted."""
        return self.chat.unknown_fields


def parse_responses_request(body: bytes) -> ResponsesRequest:
    """Check a body.

    Raises: InvalidRequestError: what is wrong first.
    """
    fields = json_object(body)
    for name, check in _CHECKED_ALONE.items():
        if name in fields:
            check(name, fields[name])
    options = {name: value for name, value in fields.items() if name in _SAME}
    options |= _renamed_options(fields)
    chat = request_under(_NAMES, options, lambda _: read_conversation(fields), num_body_bytes=len(body))
    unknown = tuple(name for name in fields if name not in _SAME | _OWN)
    chat = replace(
        chat,
        max_tokens_field="max_output_tokens",
        unknown_fields=chat.unknown_fields + unknown,
        context=asked_context(fields),
    )
    return ResponsesRequest(chat, _echo(fields))


def _renamed_options(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Give those options that a chat has under other names, or in other forms."""
    options: dict[str, Any] = {}
    if "max_output_tokens" in fields:
        options["max_tokens"] = fields["max_output_tokens"]
    if "tool_choice" in fields:
        options["tool_choice"] = _tool_choice(fields["tool_choice"])
    text = checks.mapping("text", fields.get("text", {}))
    if text.get("format") is not None:
        options["response_format"] = _format(checks.mapping("text.format", text["format"]))
    included = checks.sequence("include", fields.get("include", []), most=_MAX_INCLUDED)
    for index, entry in enumerate(included):
        checks.one_of(f"include[{index}]", entry, _INCLUDED)
    if "top_logprobs" in fields or _LOGPROBS in included:
        options |= {"logprobs": True, "top_logprobs": fields.get("top_logprobs", 0)}
    return options


def _tool_choice(value: object) -> object:
    """Bring a named function into a chat's form."""
    if not isinstance(value, dict):
        return value
    check_kind(value.get("type"))
    return {"type": "function", "function": {"name": value.get("name")}}


def _format(given: dict[str, Any]) -> dict[str, Any]:
    """Bring the form of an answer into a chat's form."""
    if given.get("type") != "json_schema":
        return given
    return {
        "type": "json_schema",
        "json_schema": {name: entry for name, entry in given.items() if name != "type" and entry is not None},
    }


def _stored(field: str, value: object) -> None:
    if checks.boolean(field, value):
        checks.refuse(field, value, "false: this server stores no responses; send the whole conversation each time")


def _named(field: str, value: object) -> None:
    checks.refuse(field, value, "it left out: this server stores no responses; send the whole conversation each time")


def _background(field: str, value: object) -> None:
    if checks.boolean(field, value):
        checks.refuse(field, value, "false: this server stores no responses, so it works on none in the background")


def _metadata(field: str, value: object) -> None:
    entries = checks.mapping(field, value)
    if len(entries) > _MAX_METADATA:
        checks.refuse(field, value, f"at most {_MAX_METADATA} entries")
    for name, entry in entries.items():
        if not isinstance(entry, str):
            raise InvalidRequestError(f"{field}: got {shown(entry)} in {shown(name)}, wanted strings", param=field)


_CHECKED_ALONE: Mapping[str, Callable[[str, Any], object]] = {
    "store": _stored,
    "previous_response_id": _named,
    "conversation": _named,
    "background": _background,
    "metadata": _metadata,
    "user": checks.text,
    "prompt_cache_key": checks.text,
    "safety_identifier": checks.text,
    "stream_options": checks.mapping,
    "reasoning": checks.mapping,
}
"""What must be right of fields that change no token of an answer."""


def _echo(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Repeat the request as the answer shows it, with defaults for what was left out."""
    reasoning, text = fields.get("reasoning", {}), fields.get("text", {})
    named = {"user": fields["user"]} if "user" in fields else {}  # the only one that may not be null
    return {
        **named,
        "background": False,
        "instructions": fields.get("instructions"),
        "max_output_tokens": fields.get("max_output_tokens"),
        "metadata": fields.get("metadata", {}),
        "parallel_tool_calls": fields.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "prompt": fields.get("prompt"),
        "prompt_cache_key": fields.get("prompt_cache_key"),
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "safety_identifier": fields.get("safety_identifier"),
        "service_tier": "default",
        "store": False,
        "temperature": fields.get("temperature", 1.0),
        "text": {"format": text.get("format") or {"type": "text"}},
        "tool_choice": fields.get("tool_choice", "auto"),
        "tools": [{"parameters": None, "strict": None, **tool} for tool in fields.get("tools", [])],
        "top_logprobs": fields.get("top_logprobs", 0),
        "top_p": fields.get("top_p", 1.0),
        "truncation": fields.get("truncation", "disabled"),
    }
