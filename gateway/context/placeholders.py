"""What stands where something was: it says what that was, so that the model can ask for it again."""

from __future__ import annotations

import orjson

_FIRST_CHARS = 60


def cleared_result(tool: str, text: str, num_tokens: int) -> str:
    """Say what a tool returned once."""
    of_whom = f" of {tool}" if tool else ""
    return f"[The result{of_whom} is no longer here: {num_tokens} tokens, beginning with {_first_words(text)}]"


def stub(document: str, text: str, num_tokens: int) -> str:
    """Say which document stood here."""
    return (
        f"[Document {document}, {num_tokens} tokens, beginning with {_first_words(text)}: "
        "passages of it are given where a question needs them]"
    )


def _first_words(text: str) -> str:
    """Quote the beginning on one line, cut between words where there are any."""
    words = " ".join(text[: 4 * _FIRST_CHARS].split())
    if len(words) > _FIRST_CHARS:
        head = words[:_FIRST_CHARS]
        words = (head.rpartition(" ")[0] or head) + "…"
    return orjson.dumps(words.encode("utf-8", "replace").decode()).decode()
