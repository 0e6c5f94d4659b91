"""Volatile parts of a registered prompt: `{{name}}` in its text, filled in by each request that names the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gateway.conversation import Conversation, map_texts, texts_of
from gateway.errors import InvalidRequestError, shown


def mark(name: str) -> str:
    """Return what stands in the text for a slot."""
    return "{{" + name + "}}"


def check_slots(conversation: Conversation, slots: Sequence[str]) -> None:
    """Refuse a slot that nothing stands for.

    Raises: InvalidRequestError: which one.
    """
    for index, name in enumerate(slots):
        if not any(mark(name) in text for text in _texts(conversation)):
            raise InvalidRequestError(
                f"slots[{index}]: got {shown(name)}, wanted a name that occurs in the text as {mark(name)}",
                param=f"slots[{index}]",
            )


def fill(conversation: Conversation, slots: Sequence[str], variables: Mapping[str, Any]) -> Conversation:
    """Put values in the places of all slots.

    Raises: InvalidRequestError: a variable is missing, unknown, or no string.
    """
    check_variables(slots, variables)
    if not slots:
        return conversation

    def filled(text: str) -> str:
        # By position in the original text: a value that looks like a slot is a value.
        pieces = [text]
        for name in slots:
            value = variables[name]
            pieces = [
                piece
                for text_or_value in pieces
                for piece in (
                    [text_or_value] if isinstance(text_or_value, _Value) else _split(text_or_value, name, value)
                )
            ]
        return "".join(pieces)

    messages = tuple(replace(message, content=map_texts(message.content, filled)) for message in conversation.messages)
    return replace(conversation, messages=messages)


def check_variables(slots: Sequence[str], variables: Mapping[str, Any]) -> None:
    """Refuse values that do not fit the slots.

    Raises: InvalidRequestError: a variable is missing, unknown, or no string.
    """
    for name, value in variables.items():
        if name not in slots:
            raise _variable_error(name, shown(value), "none of this name")
        if not isinstance(value, str):
            raise _variable_error(name, shown(value), "a string")
    missing = next((name for name in slots if name not in variables), None)
    if missing is not None:
        raise _variable_error(missing, "nothing", "a string")


class _Value(str):
    """Text that came from a client."""

    __slots__ = ()


def _split(text: str, name: str, value: str) -> list[str]:
    first, *rest = text.split(mark(name))
    return [first, *(piece for part in rest for piece in (_Value(value), part))]


def _variable_error(name: str, got: str, wanted: str) -> InvalidRequestError:
    field = f"prompt.variables.{name}"
    return InvalidRequestError(f"{field}: got {got}, wanted {wanted}", param=field)


def _texts(conversation: Conversation) -> list[str]:
    return [text for message in conversation.messages for text in texts_of(message.content)]
