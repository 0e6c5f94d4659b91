"""A chat that ends with the assistant's own words is continued: the prompt ends right behind them.

Source: transformers, tokenization_utils_base.py: continue_final_message; it cuts behind the last place of the text, so a
short text may be found in what the template writes behind it. Here that is known and cut off first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.conversation import Conversation, Message


def begun_answer(conversation: Conversation) -> Message | None:
    """Return the last message where the model is to go on with it: an assistant's text without calls.

    `continue_final_message: false` in the body asks for a new answer behind it.
    """
    last = conversation.messages[-1] if conversation.messages else None
    if last is None or last.role != "assistant" or not last.content or last.fields.get("tool_calls"):
        return None
    return None if conversation.fields.get("continue_final_message") is False else last


def cut_behind(text: str, message: Mapping[str, Any], ending: str) -> str | None:
    """Cut a rendering behind the text of its last message.

    Args:
        text: rendered without a generation prompt.
        message: the last one, as the template got it.
        ending: what the template writes behind the last message.

    Returns: None where the text is not in it.
    """
    begun = _last_text(message["content"])
    body = text.removesuffix(ending)
    if body != text or not ending:
        for form in (begun, begun.rstrip(), begun.strip()):
            if form and body.endswith(form):
                return body
    stripped = begun.strip()
    if not stripped:
        return None
    start = text.rfind(stripped)
    if start < 0:
        return None
    kept = begun.lstrip()
    return text[: start + len(kept if text.startswith(kept, start) else stripped)]


def _last_text(content: str | Sequence[Mapping[str, Any]]) -> str:
    return content if isinstance(content, str) else str(content[-1]["text"])
