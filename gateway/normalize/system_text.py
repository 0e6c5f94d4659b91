"""Rules for the system head: the leading run of system messages, and nothing after it.

The inside of a code fence stays byte for byte. Text of users, tools and assistants is never looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from gateway.conversation import Content, Conversation, map_texts, texts_of
from gateway.normalize.rule import Rule, safe

_BOM = "\ufeff"
_WHITE_SPACE = " \t\n\r\f\v"
"""ASCII only: a no-break or zero-width space may be meant."""
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_LINE_END = re.compile(r"\r+\n")


def drop_leading_bom() -> Rule:
    """Drop byte order marks in front of the system text: an editor's, not the author's."""

    def apply(content: Content) -> Content:
        return _change_ends(content, start=_without_bom)

    return _head_rule("drop_leading_bom", apply)


def trim_end_of_system() -> Rule:
    """Drop white space at the two ends of the system text; inside a fence left open it stays."""

    def apply(content: Content) -> Content:
        trimmed = _change_ends(content, start=lambda text: text.lstrip(_WHITE_SPACE))
        if _ends_in_fence(trimmed):
            return trimmed
        return _change_ends(trimmed, end=lambda text: text.rstrip(_WHITE_SPACE))

    return _head_rule("trim_end_of_system", apply)


def crlf_to_lf_system() -> Rule:
    """End the lines of system text, outside fences, with a line feed alone."""

    def apply(content: Content) -> Content:
        parts, fence = [], None
        for part in texts_of(content):
            changed, fence = _lf_outside_fences(part, fence)
            parts.append(changed)
        return _like(content, parts)

    return _head_rule("crlf_to_lf_system", apply)


def _head_rule(name: str, apply: Callable[[Content], Content]) -> Rule:
    def apply_to_head(conversation: Conversation) -> Conversation:
        count = conversation.num_head_messages
        head = tuple(replace(message, content=apply(message.content)) for message in conversation.messages[:count])
        if head == conversation.messages[:count]:
            return conversation
        return replace(conversation, messages=head + conversation.messages[count:])

    return safe(name, 1, apply_to_head)


def _like(content: Content, texts: Iterable[str]) -> Content:
    """Put changed texts back in the places of the old ones."""
    new = iter(texts)
    return map_texts(content, lambda _: next(new))


def _unchanged(text: str) -> str:
    return text


def _change_ends(
    content: Content, *, start: Callable[[str], str] = _unchanged, end: Callable[[str], str] = _unchanged
) -> Content:
    parts = texts_of(content)
    if parts:
        parts[0] = start(parts[0])
        parts[-1] = end(parts[-1])
    return _like(content, parts)


def _without_bom(text: str) -> str:
    """Look past white space, so that it does not matter whether this or trimming comes first."""
    rest = text.lstrip(_WHITE_SPACE + _BOM)
    return text[: len(text) - len(rest)].replace(_BOM, "") + rest


def _ends_in_fence(content: Content) -> bool:
    fence = None
    for part in texts_of(content):
        _, fence = _lf_outside_fences(part, fence)
    return fence is not None


def _lf_outside_fences(text: str, fence: str | None) -> tuple[str, str | None]:
    """Rewrite line ends outside fences.

    Args:
        text: one part of a system text.
        fence: the signs that opened the fence in which the text begins, or None.

    Returns: the text, and the fence in which it ends.
    """
    lines = []
    for line in _LINE.findall(text):
        mark = _FENCE.match(line.rstrip(_WHITE_SPACE))
        inside = fence is not None
        if fence is None:
            fence = mark[1] if mark else None
        elif mark and mark[1].startswith(fence) and line.strip(_WHITE_SPACE) == mark[1]:
            fence = None
        lines.append(line if inside and fence is not None else _LINE_END.sub("\n", line))
    return "".join(lines), fence
