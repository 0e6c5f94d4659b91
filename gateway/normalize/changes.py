"""Where two conversations differ, by region."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.conversation import Conversation


def changed_regions(before: Conversation, after: Conversation) -> list[str]:
    """Name the messages, tools and fields that are not the same, in the order in which they stand in a body."""
    return [
        *_places("messages", before.messages, after.messages),
        *_places("tools", before.tools, after.tools),
        *(
            name
            for name in dict.fromkeys([*before.fields, *after.fields])
            if before.fields.get(name) != after.fields.get(name)
        ),
    ]


def _places(name: str, before: Sequence[object], after: Sequence[object]) -> list[str]:
    return [
        f"{name}[{index}]"
        for index in range(max(len(before), len(after)))
        if before[index : index + 1] != after[index : index + 1]
    ]
