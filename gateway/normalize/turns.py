"""What a turn says: the form in which turns that mean the same are equal, and how a remembered one is put back.

An assistant turn comes back from a client equivalent, not equal: white space trimmed from its end, arguments printed
anew, call ids made up, reasoning dropped, "no text" written in another way. Whatever else differs is somebody's edit.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson

from gateway.conversation import Content, Message, Part

REASONING_FIELDS = ("reasoning_content", "reasoning")
"""The two spellings in use."""

_REASONING_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning"})
_REASONING_TEXTS = ("thinking", "reasoning", "text", "data")
_SAYING_FIELDS = ("name", "refusal", "audio", "function_call")
"""What else an assistant turn says; fields that nobody knows are a client's notes."""
_NOTHING: tuple[object, ...] = (None, "", [], {})


def said(message: Message) -> bytes:
    """Give the form in which assistant turns that mean the same are equal, and others are not.

    Call ids and reasoning are left out. Arguments are equal where their parsed trees are, with the text of numbers
    kept: 5, 5.0, 1e0 and "5" are four values. What does not parse is compared as text.
    """
    parts: list[object]
    if isinstance(message.content, str):  # nearly always
        text = message.content.rstrip()
        parts = [text] if text else []
    else:
        parts = [_bare(part) for part in spoken(message.content)]
        if parts and isinstance(parts[-1], str):
            parts[-1] = parts[-1].rstrip()
    calls = [
        [call.get("type") or "function", call["function"]["name"], _arguments(call["function"]["arguments"])]
        for call in calls_of(message)
    ]
    more = {name: message.fields[name] for name in _SAYING_FIELDS if message.fields.get(name) not in _NOTHING}
    return orjson.dumps([parts, calls, more], option=orjson.OPT_SORT_KEYS)


def calls_of(message: Message) -> Sequence[Mapping[str, Any]]:
    """Return the tool calls of a turn; null and an empty list are none."""
    return message.fields.get("tool_calls") or ()


def spoken(content: Content) -> tuple[Part, ...]:
    """Return the parts of a content that are no reasoning; nothing but white space is none."""
    parts = tuple(part for part in as_parts(content) if not is_reasoning(part))
    is_blank = all(part["type"] == "text" and not part["text"].strip() for part in parts)
    return () if is_blank else parts


def as_parts(content: Content) -> tuple[Part, ...]:
    """Write a content as parts."""
    if content is None:
        return ()
    return ({"type": "text", "text": content},) if isinstance(content, str) else content


def is_reasoning(part: Part) -> bool:
    """Whether a part holds what the model thought before it spoke."""
    return part["type"] in _REASONING_PARTS


def thoughts(message: Message) -> frozenset[str]:
    """Return what the model thought, in whatever field or part it came, up to trailing white space."""
    fields = [message.fields[name] for name in REASONING_FIELDS if message.fields.get(name) not in _NOTHING]
    parts = [part for part in as_parts(message.content) if is_reasoning(part)]
    held = [next((part[name] for name in _REASONING_TEXTS if part.get(name) not in _NOTHING), part) for part in parts]
    return frozenset(_text_of(value) for value in (*fields, *held))


def without_reasoning(content: Content) -> Content:
    """Drop the parts that hold reasoning; a text that is left alone is a string."""
    if not isinstance(content, tuple) or not any(map(is_reasoning, content)):
        return content
    return _shortest(tuple(part for part in content if not is_reasoning(part)))


def rejoined(thinking: Content, speaking: Content) -> Content:
    """Take the reasoning of one content, and where it stands, and what is spoken of an equivalent one."""
    shape = as_parts(thinking)
    if not any(map(is_reasoning, shape)):
        return without_reasoning(speaking)
    if spoken(thinking) == spoken(speaking):
        return thinking
    rest = [part for part in as_parts(speaking) if not is_reasoning(part)]
    if len(rest) != sum(not is_reasoning(part) for part in shape):  # one of them has blank text, the other none
        return (*filter(is_reasoning, shape), *rest)
    following = iter(rest)
    return tuple(part if is_reasoning(part) else next(following) for part in shape)


def with_fields(fields: Mapping[str, Any], remembered: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Put some fields back as they are remembered, there or not.

    Returns: all fields, those that are remembered in that order, then the others as they came.
    """
    kept = {name: value for name, value in fields.items() if name not in names}
    back = {
        name: value if name in names else kept[name]
        for name, value in remembered.items()
        if name in names or name in kept
    }
    return back | kept


def unless_printed_alike(new: Message, old: Message) -> Message:
    """Return the old message where the new one says the same byte for byte: order counts, so `==` does not do."""
    alike = orjson.dumps([new.content, new.fields]) == orjson.dumps([old.content, old.fields])
    return old if alike else new


def are_the_same_text(one: Message, other: Message) -> bool:
    """Whether two messages of one role are the same text and nothing else, as most turns that come back are."""
    return isinstance(one.content, str) and one.content == other.content and not one.fields and not other.fields


def _text_of(value: object) -> str:
    return value.rstrip() if isinstance(value, str) else orjson.dumps(value).decode()


def _shortest(parts: tuple[Part, ...]) -> Content:
    if not parts:
        return None
    text = _bare(parts[0])
    return text if len(parts) == 1 and isinstance(text, str) else parts


def _bare(part: Part) -> object:
    """Write a plain text as one, so that one part and a string are equal."""
    return part["text"] if part.keys() == {"type", "text"} and part["type"] == "text" else part


def _arguments(text: str) -> list[str]:
    try:
        return ["json", repr(_EXACT.decode(text))]
    except (ValueError, RecursionError):
        return ["text", text]


class _Number(str):
    """A number by its text; printed bare, so that it equals no string."""

    __slots__ = ()
    __repr__ = str.__str__


def _members(pairs: list[tuple[str, object]]) -> tuple[tuple[str, object], ...]:
    """Keep an object apart from an array, and make it independent of the order of its keys; all of one name stay."""
    return tuple(sorted(pairs, key=lambda member: member[0]))


_EXACT = json.JSONDecoder(object_pairs_hook=_members, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
