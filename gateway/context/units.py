"""A history in units that are kept or dropped whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.context.lazy import Lazy
from gateway.conversation import Message

Counter = Callable[[str], int]
"""Tells about how many tokens a text has. Equal texts have equal counts."""


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


def borders_of(messages: Sequence[Message], num_head: int) -> list[int]:
    """Cut a history behind its head; a call and its results are never parted.

    Returns: the index of each unit's first message, and behind the last one the number of messages.
    """
    behind = range(num_head + 1, len(messages))
    borders = [num_head, *(index for index in behind if messages[index].role != "tool"), len(messages)]
    return borders if num_head < len(messages) else borders[1:]


def units_of(messages: Sequence[Message], borders: Sequence[int]) -> Sequence[Unit]:
    """Give the units between borders."""
    return Lazy(
        len(borders) - 1, lambda index: Unit(tuple(messages[borders[index] : borders[index + 1]]), borders[index])
    )


def is_request_point(units: Sequence[Unit], index: int) -> bool:
    """Whether a request could have ended with a unit: an answer comes next, or nothing.

    With an assistant's message it does not: what ends a request so is the beginning of an answer, and comes back as a part
    of it; and where one follows another, nobody asked in between.
    """
    is_answer_next = index + 1 == len(units) or units[index + 1].messages[0].role == "assistant"
    return is_answer_next and units[index].messages[-1].role != "assistant"
