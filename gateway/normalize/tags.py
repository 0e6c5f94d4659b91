"""Blocks of a text between `<tag>` and `</tag>`, found in one pass."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Block(NamedTuple):
    """Where a block is."""

    tag: str
    start: int
    inner_start: int
    inner_end: int
    end: int


def find_blocks(text: str, tags: Sequence[str]) -> Iterator[Block]:
    """Yield the outermost blocks with one of the tags, which may have attributes, in order.

    One that never ends is none. Takes time linear in the text, whatever is in it.
    """
    opening = re.compile("<(" + "|".join(map(re.escape, tags)) + r")(?:\s[^<>]{0,256})?>")
    start, unclosed = 0, set[str]()
    while match := opening.search(text, start):
        start = match.end()
        if match[1] in unclosed:
            continue
        closing = f"</{match[1]}>"
        inner_end = text.find(closing, start)
        if inner_end < 0:
            unclosed.add(match[1])
            continue
        yield Block(match[1], match.start(), match.end(), inner_end, inner_end + len(closing))
        start = inner_end + len(closing)
