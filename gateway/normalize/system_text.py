"""Rules for what editors and templates leave at the ends of the system text and of its lines."""

from __future__ import annotations

import re
from collections.abc import Callable

from gateway.conversation import Content, texts_of
from gateway.normalize.head_text import (
    BOM,
    WHITE_SPACE,
    change_head,
    change_outside_fences,
    ends_in_fence,
    with_texts,
)
from gateway.normalize.rule import Rule, safe

_LINE_END = re.compile(r"\r+\n")


def drop_leading_bom() -> Rule:
    """Drop byte order marks in front of the system text: an editor's, not the author's."""

    def apply(content: Content) -> Content:
        return _change_ends(content, start=_without_bom)

    return safe("drop_leading_bom", 1, change_head(apply), by_region=True)


def trim_end_of_system() -> Rule:
    """Drop white space at the two ends of the system text; inside a fence left open it stays."""

    def apply(content: Content) -> Content:
        trimmed = _change_ends(content, start=lambda text: text.lstrip(WHITE_SPACE))
        if ends_in_fence(trimmed):
            return trimmed
        return _change_ends(trimmed, end=lambda text: text.rstrip(WHITE_SPACE))

    return safe("trim_end_of_system", 1, change_head(apply), by_region=True)


def crlf_to_lf_system() -> Rule:
    """End the lines of system text, outside fences, with a line feed alone."""

    def apply(content: Content) -> Content:
        return change_outside_fences(content, lambda run: _LINE_END.sub("\n", run))

    return safe("crlf_to_lf_system", 1, change_head(apply), by_region=True)


def _unchanged(text: str) -> str:
    return text


def _change_ends(
    content: Content, *, start: Callable[[str], str] = _unchanged, end: Callable[[str], str] = _unchanged
) -> Content:
    parts = texts_of(content)
    if parts:
        parts[0] = start(parts[0])
        parts[-1] = end(parts[-1])
    return with_texts(content, parts)


def _without_bom(text: str) -> str:
    """Look past white space, so that it does not matter whether this or trimming comes first."""
    rest = text.lstrip(WHITE_SPACE + BOM)
    return text[: len(text) - len(rest)].replace(BOM, "") + rest
