"""A history in units that are kept or dropped whole, how long they are, and the digests that name each of its beginnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise

import orjson

from gateway.conversation import Conversation, Message

Counter = Callable[[str], int]
"""Tells about how many tokens a text has. Equal texts have equal counts."""

_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Unit:
    """A user's message, or an assistant's with the results of its calls: what the model reads as one."""

    messages: tuple[Message, ...]
    start: int
    """Of its first message in the history."""

    @property
    def is_of_user(self) -> bool:
        """Whether it asks something."""
        return self.messages[0].role == "user"


def units_of(messages: Sequence[Message], num_head: int) -> list[Unit]:
    """Cut a history behind its head; a call and its results are never parted."""
    starts = [index for index in range(num_head, len(messages)) if index == num_head or messages[index].role != "tool"]
    return [Unit(tuple(messages[start:stop]), start) for start, stop in pairwise([*starts, len(messages)])]


def is_request_point(units: Sequence[Unit], index: int) -> bool:
    """Whether a request could have ended with a unit: an answer comes next, or nothing.

    A last message of the assistant is the beginning of an answer, which comes back as a part of it.
    """
    if index + 1 < len(units):
        return units[index + 1].messages[0].role == "assistant"
    return units[index].messages[-1].role != "assistant"


def digests_of(conversation: Conversation) -> list[bytes]:
    """Name each beginning of a history: of the head with the tools, then with each message more.

    Returns: one for the head and one for each message behind it; equal ones mean equal beginnings.
    """
    return list(_digests(conversation))


def _digests(conversation: Conversation) -> Iterator[bytes]:
    num_head = conversation.num_head_messages
    digest = blake2b(orjson.dumps(list(conversation.tools)), digest_size=_DIGEST_BYTES)
    for index, message in enumerate(conversation.messages):
        if index >= num_head:
            yield digest.digest()
        parts = [message.role, message.content, dict(message.fields)]
        digest = blake2b(orjson.dumps(parts), key=digest.digest(), digest_size=_DIGEST_BYTES)
    yield digest.digest()
