"""Which tokens of a prompt came from which part of the request.

Owners are `messages[i]`, `messages[i].content[j]` for a part of several, `tools[k]`, and `template` for what the template
writes itself. A token that two of them share belongs to the one that is not the template.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.pieces import Piece, PieceEncoder
from gateway.region_messages import FoundMessage, find_messages
from gateway.region_page import CharSpan, Page
from gateway.region_tools import find_tools
from gateway.tool_prints import PrintedArray

TEMPLATE = "template"


@dataclass(frozen=True, slots=True)
class Region:
    """A span of a prompt with an owner."""

    owner: str
    start: int
    """Its first token."""
    end: int
    """The token behind its last one."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where messages and tools stand in a text, in characters."""

    messages: Sequence[FoundMessage | None]
    tools: Sequence[CharSpan | None]

    def spans(self, further: Iterable[tuple[str, CharSpan]] = ()) -> list[tuple[str, CharSpan]]:
        """Return owners with their spans, and further ones, in order and without overlap."""
        tools = [(f"tools[{index}]", span) for index, span in enumerate(self.tools) if span]
        messages = [
            owned
            for index, message in enumerate(self.messages)
            if message
            for owned in _message_spans(f"messages[{index}]", message)
        ]
        spans, end = [], 0
        for owner, (start, stop) in sorted([*tools, *messages, *further], key=lambda owned: owned[1]):
            if stop > max(start, end):
                spans.append((owner, (max(start, end), stop)))
                end = stop
        return spans


def lay_out(
    text: str,
    messages: Sequence[Mapping[str, Any]],
    texts: Sequence[Sequence[str]],
    tools: PrintedArray,
    headers: Mapping[str, str],
) -> Layout:
    """Find what stands where in a rendered text.

    Args:
        text: as rendered.
        messages: as the template got them.
        texts: of the parts of each one's content.
        tools: as the template got them, with the prints that it made.
        headers: role -> what the template writes directly before its contents.
    """
    page = Page(text)
    tool_spans = find_tools(page, tools)
    found = [span for span in tool_spans if span]
    page = page.without([(found[0][0], found[-1][1])] if found else [])
    return Layout(find_messages(page, messages, texts, headers), tool_spans)


def _message_spans(owner: str, message: FoundMessage) -> Iterator[tuple[str, CharSpan]]:
    """Give a message's parts, and what is between them as the message's own."""
    start, stop = message.hull
    for index, part in enumerate(message.parts if len(message.parts) > 1 else ()):
        if part:
            yield owner, (start, part[0])
            yield f"{owner}.content[{index}]", part
            start = part[1]
    yield owner, (start, stop)


def regions_of(spans: Sequence[tuple[str, CharSpan]], pieces: Sequence[Piece], encoder: PieceEncoder) -> list[Region]:
    """Turn spans of characters into regions that cover all tokens of a prompt, in order and without overlap."""
    ruler = _Ruler(pieces, encoder)
    regions: list[Region] = []
    end = 0
    for owner, (first_char, last_char) in spans:
        start, stop = max(ruler.first_token(first_char), end), ruler.last_token(last_char)
        if stop <= start:
            continue
        if start > end:
            regions.append(Region(TEMPLATE, end, start))
        if regions and regions[-1].owner == owner and regions[-1].end == start:
            start = regions.pop().start
        regions.append(Region(owner, start, stop))
        end = stop
    if ruler.num_tokens > end:
        regions.append(Region(TEMPLATE, end, ruler.num_tokens))
    return regions


class _Ruler:
    """From characters to tokens."""

    def __init__(self, pieces: Sequence[Piece], encoder: PieceEncoder) -> None:
        self._pieces = pieces
        self._encoder = encoder
        self._chars = [0]
        self._tokens = [0]
        for piece in pieces:
            self._chars.append(self._chars[-1] + len(piece.text))
            self._tokens.append(self._tokens[-1] + len(piece.token_ids))

    @property
    def num_tokens(self) -> int:
        return self._tokens[-1]

    def first_token(self, char: int) -> int:
        """Return the token that holds a character."""
        index = bisect.bisect_right(self._chars, char) - 1
        if index >= len(self._pieces):
            return self.num_tokens
        offset = char - self._chars[index]
        ended = bisect.bisect_right(self._encoder.ends(self._pieces[index]), offset) if offset else 0
        return self._tokens[index] + ended

    def last_token(self, char: int) -> int:
        """Return the token behind the one that holds the character before this one."""
        index = bisect.bisect_left(self._chars, char) - 1
        offset = char - self._chars[index]
        if offset == len(self._pieces[index].text):
            return self._tokens[index + 1]
        ends = self._encoder.ends(self._pieces[index])
        # Tokens that are bytes of one character all end with it.
        ended = max(bisect.bisect_right(ends, offset), bisect.bisect_left(ends, offset) + 1)
        return min(self._tokens[index] + ended, self._tokens[index + 1])
