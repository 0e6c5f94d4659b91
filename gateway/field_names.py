"""Fields of a chat that other endpoints have under other names: they are checked there, and errors name them as here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gateway.chat_request import ChatRequest, request_of
from gateway.conversation import Conversation
from gateway.errors import InvalidRequestError


def request_under(
    names: Mapping[str, str],
    options: Mapping[str, Any],
    read: Callable[[Mapping[str, Any]], Conversation],
    *,
    num_body_bytes: int,
) -> ChatRequest:
    """Check options that are in a chat's words.

    Args:
        names: a chat's name of a field -> the client's; a longer one before its beginning.
        options: as a chat has them.
        read: gives what is said.
        num_body_bytes: of the body.

    Raises: InvalidRequestError: what is wrong first.
    """
    try:
        chat = request_of(options, read, num_body_bytes=num_body_bytes)
    except InvalidRequestError as error:
        raise in_own_words(error, names) from error
    if chat.structure is None:
        return chat
    return replace(chat, structure=replace(chat.structure, field=own_name(chat.structure.field, names)))


def in_own_words(error: InvalidRequestError, names: Mapping[str, str]) -> InvalidRequestError:
    """Name the field of an error as the client named it."""
    if error.param is None:
        return error
    name = own_name(error.param, names)
    return error if name == error.param else type(error)(str(error).replace(error.param, name, 1), param=name)


def own_name(field: str, names: Mapping[str, str]) -> str:
    """Give the client's name of a field."""
    for name, own in names.items():
        if field == name or field.startswith(f"{name}."):
            return own + field.removeprefix(name)
    return field
