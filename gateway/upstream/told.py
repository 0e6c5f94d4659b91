"""What one JSON of an answer tells, the whole answer or an event of its stream, in the words of either provider. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Fields = Mapping[str, Any]

_LAST_EVENTS = frozenset({"message_stop", "response.completed", "response.incomplete", "response.failed"})
_UNFINISHED = frozenset({"in_progress", "queued"})


class Usage(NamedTuple):
    """Tokens; None: not told."""

    prompt: int | None
    """The cached ones too."""
    cached: int | None
    output: int | None


def is_last(answer: Fields) -> bool:
    """Whether an event ends its stream."""
    return answer.get("type") in _LAST_EVENTS


def completion_id(answer: Fields) -> str:
    """Give the upstream's name for an answer; empty: not told."""
    name = _holder(answer).get("id")
    return name if isinstance(name, str) else ""


def finish_reason(answer: Fields) -> str | None:
    """Say why it ended; None: not told."""
    holder, delta = _holder(answer), answer.get("delta")
    told = [_first_choice(answer).get("finish_reason"), holder.get("stop_reason")]
    if isinstance(delta, dict):
        told.append(delta.get("stop_reason"))
    if holder.get("object") == "response" and holder.get("status") not in _UNFINISHED:
        told.append(holder.get("status"))
    return next((reason for reason in told if isinstance(reason, str)), None)


def usage(answer: Fields) -> Usage | None:
    """Read its usage; None: it has none."""
    told = _holder(answer).get("usage", answer.get("usage"))
    if not isinstance(told, dict):
        return None
    if "cache_read_input_tokens" in told or "cache_creation_input_tokens" in told:
        return _anthropic_usage(told)
    prompt = _count(told.get("prompt_tokens", told.get("input_tokens")))
    details = told.get("prompt_tokens_details", told.get("input_tokens_details"))
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return Usage(prompt, cached, _count(told.get("completion_tokens", told.get("output_tokens"))))


def said_in_piece(answer: Fields) -> Iterator[Fields]:
    """Yield what an event adds to the first choice, as parts of an assistant's message."""
    yield from _said(_first_choice(answer), "delta")
    delta = answer.get("delta")
    if answer.get("type") == "response.output_text.delta":
        yield {"content": delta}
    elif isinstance(delta, dict) and delta.get("type") == "text_delta":
        yield {"content": delta.get("text")}


def said_as_a_whole(answer: Fields) -> Iterator[Fields]:
    """Yield what an answer in one piece says, likewise."""
    yield from _said(_first_choice(answer), "message")
    for item in [answer, *_dicts(answer.get("output"))]:
        for part in _dicts(item.get("content")):
            yield {"content": part.get("text")}


def _holder(answer: Fields) -> Fields:
    """Find what has name and usage: the answer, or what an event brings of it."""
    for name in ("message", "response"):
        if isinstance(answer.get(name), dict):
            return answer[name]  # type: ignore[no-any-return]
    return answer


def _first_choice(answer: Fields) -> Fields:
    choices = answer.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def _said(choice: Fields, part: str) -> Iterator[Fields]:
    if choice.get("index", 0) != 0:
        return
    if isinstance(choice.get(part), dict):
        yield choice[part]
    elif "text" in choice:  # a completion
        yield {"content": choice["text"]}


def _anthropic_usage(told: Fields) -> Usage:
    """Sum the three kinds of input, which are apart here."""
    cached = _count(told.get("cache_read_input_tokens")) or 0
    fresh = _count(told.get("input_tokens"))
    written = _count(told.get("cache_creation_input_tokens")) or 0
    return Usage(None if fresh is None else fresh + cached + written, cached, _count(told.get("output_tokens")))


def _dicts(value: object) -> list[Fields]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**31 else None
