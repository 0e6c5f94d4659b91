"""How the model is asked for a summary, and what of its answer is taken."""

from __future__ import annotations

import zlib

from gateway.context.borders import SENTENCE, borders_of
from gateway.context.units import Counter
from gateway.conversation import Conversation, Message

_INSTRUCTION = (
    "Stop here and summarize this conversation. Your summary will take the place of its older turns, and the newest ones "
    "will stay, so give most of the room to what was said first. Write in the language of the conversation. Keep all "
    "names, numbers, dates, decisions, and what is still to be done; leave out what was taken back. "
    "Write plain sentences and nothing else, at most {num_words} words. Do not answer any question and call no tool."
)
_WORDS_PER_TOKEN = 0.6
_MIN_CHARS = 20
_CHECKED_CHARS = 200
"""A shorter text cannot be told from one that goes round in circles."""
_MOST_COMPRESSION = 4.0
"""Prose of a few hundred words is 1.5 to 2.5 times as long as when it is compressed, and what repeats itself far longer."""
_ENDS = (*".!?…؟۔።。！？；｡।॥", '."', ".”", ".)", "。”", "。」", "！”", "？”")


def asked_for_summary(sent: Conversation, max_tokens: int) -> Conversation:
    """Put the instruction behind a chat that ends with an answer."""
    instruction = _INSTRUCTION.format(num_words=int(_WORDS_PER_TOKEN * max_tokens))
    return Conversation((*sent.messages, Message("user", instruction)), sent.tools, sent.fields)


def usable_summary(text: str, *, is_cut: bool, most_tokens: int, count: Counter) -> str | None:
    """Take what is good of an answer.

    Args:
        text: without thoughts and calls.
        is_cut: it was cut off, so that its last sentence may lack its end.
        most_tokens: that it may take.
        count: see `Counter`.

    Returns: whole sentences that fit; None: there are none, or they go round in circles.
    """
    text = text.strip()
    if is_cut or count(text) > most_tokens:
        text = _whole_sentences(text, most_tokens, count)
    return None if len(text) < _MIN_CHARS or _goes_round(text) else text


def _whole_sentences(text: str, most_tokens: int, count: Counter) -> str:
    """Give the longest beginning that ends with a sentence and fits; empty: there is none."""
    ends = [border.end for border in borders_of(text) if border.rank >= SENTENCE]
    if text.endswith(_ENDS):
        ends.append(len(text))
    fitting = (text[:end].rstrip() for end in reversed(ends))
    return next((beginning for beginning in fitting if count(beginning) <= most_tokens), "")


def _goes_round(text: str) -> bool:
    data = text.encode("utf-8", "replace")
    return len(text) > _CHECKED_CHARS and len(data) > _MOST_COMPRESSION * len(zlib.compress(data))
