"""Keeps text that looks like a special token apart from the special tokens that the template writes.

Before rendering, every such text in what the client sent is replaced by a marker that nobody can guess; after rendering
the tokenizer puts the characters back as ordinary text. Conversations without any, nearly all, only pay for a search.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def mask(pattern: re.Pattern[str], value: Any) -> tuple[Any, dict[str, str]]:
    """Replace every match in a JSON value.

    Returns: the value with markers, and what each marker stands for.
    """
    nonce = secrets.token_hex(8)
    literals: dict[str, str] = {}
    markers: dict[str, str] = {}

    def marker(match: re.Match[str]) -> str:
        text = match[0]
        if text not in markers:
            markers[text] = f"q{nonce}q{len(markers)}q"
            literals[markers[text]] = text
        return markers[text]

    def masked(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(marker, value)
        if isinstance(value, Mapping):
            return {masked(key): masked(entry) for key, entry in value.items()}
        if isinstance(value, Sequence):
            return [masked(entry) for entry in value]
        return value

    return masked(value), literals


def texts(value: object) -> Iterator[str]:
    """Give every text in a JSON value, names of fields, too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield key
            yield from texts(entry)
    elif isinstance(value, Sequence):
        for entry in value:
            yield from texts(entry)
