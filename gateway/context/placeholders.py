"""What stands where something was, and in front of what is quoted: short, and told apart from what somebody said."""

from __future__ import annotations

import re

import orjson

from gateway.context.chunks import letter_end

_FIRST_BYTES = 60
"""Of UTF-8: about as many tokens in every script."""
_MAX_NAME_CHARS = 40
GAP = "[…]"
"""Where something was left out of a quote."""
_FENCE = "```"
_RUNS = re.compile(r"`{3,}")
_SUMMARY_HEADER = "[Summary of earlier turns of this chat, which are left out]"


def cleared_result(tool: str, text: str, num_tokens: int) -> str:
    """Say what a tool returned once."""
    return f"[The result{_of(tool)} is no longer here: {num_tokens} tokens, beginning with {_first_words(text)}]"


def shortened_result(tool: str, parts: str, num_left_out: int) -> str:
    """Quote parts of what a tool returned, with `GAP` between them; say how many tokens the rest has."""
    header = f"[Parts of the result{_of(tool)}: {num_left_out} tokens are left out, where {GAP} stands]"
    return f"{header}\n{quoted('result', parts)}"


def stub(document: str, text: str, num_tokens: int) -> str:
    """Say which document stood here."""
    return (
        f"[Document {document}, {num_tokens} tokens, beginning with {_first_words(text)}: "
        "passages of it are given where a question needs them]"
    )


def summary_block(summary: str) -> str:
    """Write the summary that stands in front of the first turn that is sent."""
    return f"{_SUMMARY_HEADER}\n{quoted('summary', summary)}"


def quoted(label: str, text: str) -> str:
    """Quote a text as a block of its own, which nothing in the text can end.

    So what a tool returned may stand in a user's turn and not pass for the user's words. The text is not changed, but
    for blank lines around it.

    Args:
        label: what it is, without white space or backticks.
        text: of any kind.
    Source: CommonMark, "Fenced code blocks": only a fence that is as long ends a block.
    """
    longest = max(map(len, _RUNS.findall(text)), default=0) if _FENCE in text else 0
    fence = "`" * max(len(_FENCE), longest + 1)
    inner = text.lstrip("\r\n").rstrip()
    return f"{fence}{label}\n{inner}\n{fence}\n"


def _of(tool: str) -> str:
    return f" of {_one_line(tool[:_MAX_NAME_CHARS])}" if tool else ""


def _first_words(text: str) -> str:
    """Quote the beginning on one line, cut between words where there are any, as JSON: nothing in it ends the quote."""
    words = _one_line(text[: 4 * _FIRST_BYTES])
    head = words.encode("utf-8", "replace")[:_FIRST_BYTES].decode("utf-8", "ignore")
    if len(head) < len(words):
        head = head[: letter_end(words, len(head))]
        head = (head.rpartition(" ")[0] or head) + "…"
    return orjson.dumps(head).decode()


def _one_line(text: str) -> str:
    """Make a text one line of signs that can be seen."""
    seen = text if text.isprintable() else "".join(sign if sign.isprintable() else " " for sign in text)
    return " ".join(seen.split())
