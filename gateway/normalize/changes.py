"""Where two conversations differ, by region."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.conversation import Conversation


def changed_regions(before: Conversation, after: Conversation) -> list[str]:
    """Name the messages, tools and fields that are not the same, in the order in which they stand in a body."""
    return [
        *_places("messages", before.messages, after.messages),
        *_places("tools", before.tools, after.tools),
        *(
            name
            for name in dict.fromkeys([*before.fields, *after.fields])
            if _printed(before.fields.get(name)) != _printed(after.fields.get(name))
        ),
    ]


def _places(name: str, before: Sequence[Any], after: Sequence[Any]) -> list[str]:
    return [
        f"{name}[{index}]"
        for index in range(max(len(before), len(after)))
        if _printed(before[index : index + 1]) != _printed(after[index : index + 1])
    ]


def _printed(value: Any) -> bytes:
    """As on the wire, where the order of keys counts."""
    return orjson.dumps(value)
