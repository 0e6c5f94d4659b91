"""Ways to change the text of the system head: the leading run of system messages, and nothing after it.

Text of users, tools and assistants is never looked at. The inside of a code fence stays byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from gateway.conversation import Content, Conversation, map_texts, texts_of

WHITE_SPACE = " \t\n\r\f\v"
"""ASCII only: a no-break or zero-width space may be meant."""
BOM = "\ufeff"
NO_BREAK_SPACES = "\u00a0\u202f"
AROUND = WHITE_SPACE + BOM + NO_BREAK_SPACES
"""What one rule or another drops from the start: looked past, so that it does not matter which rule comes first."""
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


def change_head(change: Callable[[Content], Content]) -> Callable[[Conversation], Conversation]:
    """Make a change of the content of every message of the head."""

    def apply(conversation: Conversation) -> Conversation:
        count = conversation.num_head_messages
        head = conversation.messages[:count]
        contents = [change(message.content) for message in head]
        if all(new == message.content for new, message in zip(contents, head, strict=True)):
            return conversation
        changed = tuple(replace(message, content=new) for message, new in zip(head, contents, strict=True))
        return replace(conversation, messages=changed + conversation.messages[count:])

    return apply


def change_outside_fences(content: Content, change: Callable[[str], str]) -> Content:
    """Change runs of lines that are in no fence; the lines that open and close one are not in it."""
    texts, fence = [], None
    for index, text in enumerate(texts_of(content)):
        start = 0 if index else len(text) - len(text.lstrip(AROUND))
        pieces, fence = split_fences(text[start:], fence)
        texts.append(change(text[:start]) + "".join(piece if fenced else change(piece) for piece, fenced in pieces))
    return with_texts(content, texts)


def ends_in_fence(content: Content) -> bool:
    """Whether a fence is still open at the end."""
    fence = None
    for text in texts_of(content):
        _, fence = split_fences(text, fence)
    return fence is not None


def with_texts(content: Content, texts: Iterable[str]) -> Content:
    """Put changed texts in the places of the old ones."""
    new = iter(texts)
    return map_texts(content, lambda _: next(new))


def split_fences(text: str, fence: str | None = None) -> tuple[list[tuple[str, bool]], str | None]:
    """Part a text into runs of lines in fences and in none.

    Args:
        text: one part of a content.
        fence: the signs that opened the fence in which the text begins, or None.

    Returns: runs of lines with whether they are in a fence, and the fence in which the text ends.
    """
    if fence is None and "```" not in text and "~~~" not in text:
        return [(text, False)], None
    runs: list[tuple[str, bool]] = []
    start, end, was_fenced = 0, 0, False
    for line, fenced, after in _lines(text, fence):
        fence = after
        if fenced is not was_fenced and end > start:
            runs.append((text[start:end], was_fenced))  # sliced once a run: adding line by line takes quadratic time
            start = end
        was_fenced = fenced
        end += len(line)
    return [*runs, *([(text[start:end], was_fenced)] if end > start else [])], fence


def _lines(text: str, fence: str | None) -> Iterator[tuple[str, bool, str | None]]:
    for line in _LINE.findall(text):
        mark = _FENCE.match(line.rstrip(WHITE_SPACE))
        inside = fence is not None
        if fence is None:
            fence = mark[1] if mark else None
        elif mark and mark[1].startswith(fence) and line.strip(WHITE_SPACE) == mark[1]:
            fence = None
        yield line, inside and fence is not None, fence
