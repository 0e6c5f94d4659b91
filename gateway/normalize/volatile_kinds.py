"""What volatile text looks like: the kinds that operators can name, and the search for them that needs no operator.

A kind says what a text looks like, never that it changes. So nothing moves by kind unless it was asked for: a date may
be a rule, and an id in a path may be the one to use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.conversation import Conversation
from gateway.normalize.schema import change_schemas

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}"
_TIME = r"\d{1,2}:\d{2}:\d{2}(?:[.,]\d{1,9})?(?: ?[AaPp]\.?[Mm]\b\.?)?"
_ZONE = r"(?: ?(?:Z\b|UTC\b|GMT\b|[+-]\d{2}:?\d{2}\b))?"
KINDS: Mapping[str, re.Pattern[str]] = {
    "clock": re.compile(
        rf"\b\d{{4}}-\d{{2}}-\d{{2}}[T ]\d{{2}}:\d{{2}}(?::\d{{2}}(?:[.,]\d{{1,9}})?)?{_ZONE}"
        rf"|\b{_MONTH} \d{{1,2}},? \d{{4}},? (?:at )?{_TIME}{_ZONE}|\b{_TIME}{_ZONE}"
    ),
    "date": re.compile(rf"\b\d{{4}}-\d{{2}}-\d{{2}}\b|\b{_MONTH} \d{{1,2}},? \d{{4}}\b|\b\d{{1,2}} {_MONTH} \d{{4}}\b"),
    "uuid": re.compile(r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b"),
    "hex_id": re.compile(r"(?<![0-9a-zA-Z])(?=[0-9a-f]{0,40}[a-f])(?=[0-9a-f]{0,40}\d)[0-9a-f]{8,64}(?![0-9a-zA-Z])"),
    "path": re.compile(r"(?<![\w/.])(?:/[\w.@+-]{1,128}){2,24}/?|\b[A-Z]:(?:\\[\w.@+ -]{1,128}){1,24}"),
    "counter": re.compile(
        r"\b\d{1,12} (?:tokens?|messages?|requests?|turns?|steps?)(?: (?:left|remaining|used|so far))?\b"
    ),
}
"""Name -> how it looks. All take time linear in the text: every length is bounded, and no two ways begin alike."""

LIVE_KINDS = ("clock", "uuid", "hex_id", "counter")
"""That are hardly ever the same in two requests."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A text in the head that will probably be another one in the next request."""

    owner: str
    """Its region: `messages[0]`, `messages[0].content[1]` or `tools[3]`."""
    field: str
    """Where in a tool its text is, such as `function.description`; of a message: `content`."""
    start: int
    """First character, in this text."""
    end: int
    kind: str
    text: str


def volatile_candidates(conversation: Conversation) -> list[Candidate]:
    """Find clocks, ids and counters in the system head and in tool descriptions, in the order of the prompt's regions.

    Says nothing about their cost: all tokens behind the first one are lost where it changes, which who knows the tokens
    can count.
    """
    found = []
    for index, message in enumerate(conversation.messages[: conversation.num_head_messages]):
        owner = f"messages[{index}]"
        if isinstance(message.content, str):
            found += list(_in_text(owner, "content", message.content))
        for place, part in enumerate(message.content if isinstance(message.content, tuple) else ()):
            if part["type"] == "text":
                found += list(_in_text(f"{owner}.content[{place}]", "content", part["text"]))
    for index, tool in enumerate(conversation.tools):
        for field, text in _descriptions(tool):
            found += list(_in_text(f"tools[{index}]", field, text))
    return found


def _in_text(owner: str, field: str, text: str) -> Iterator[Candidate]:
    end = 0
    spans = ((*match.span(), kind) for kind in LIVE_KINDS for match in KINDS[kind].finditer(text))
    for start, stop, kind in sorted(spans, key=lambda span: (span[0], -span[1])):
        if start >= end:
            end = stop
            yield Candidate(owner, field, start, stop, kind, text[start:stop])


def _descriptions(tool: Mapping[str, Any]) -> list[tuple[str, str]]:
    function = tool["function"]
    found = [("function.description", function["description"])] if isinstance(function.get("description"), str) else []

    def see(schema: dict[str, Any]) -> dict[str, Any]:
        if isinstance(schema.get("description"), str):
            found.append(("function.parameters", schema["description"]))
        return schema

    change_schemas(function.get("parameters"), see)
    return found
