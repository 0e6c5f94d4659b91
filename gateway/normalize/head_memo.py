"""What came of the system heads and tools that were seen before: bounded, and apart for every scope.

Most requests repeat a head byte for byte. It is changed once; later ones get the very same objects, so that who renders
can tell by identity that nothing is new. What is remembered follows from the text alone: forgetting costs time only.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Generic, TypeVar

import orjson

from gateway.conversation import Conversation

DEFAULT_MAX_BYTES = 64 << 20
_ENTRY_BYTES = 1024
"""Assumed for what an entry takes beside its texts."""
_COPIES = 4
"""Assumed of the text: the key, the head as it came and as it became, and the overhead of small objects."""


_T = TypeVar("_T")


class HeadMemo(Generic[_T]):
    """Remembers what came of heads; the least recently used is forgotten first. Safe to call from several threads."""

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._entries: OrderedDict[Hashable, tuple[_T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def know(self, owner: Hashable, head: Conversation, find_out: Callable[[Conversation], _T]) -> _T:
        """Return what comes of a head.

        Args:
            owner: rules and scope; another one's are never seen.
            head: system messages and tools.
            find_out: makes what is not known yet; called outside the lock.
        """
        text = _printed(head)
        if text is None:
            return find_out(head)
        key = (owner, text)
        with self._lock:
            if (found := self._entries.get(key)) is not None:
                self._entries.move_to_end(key)
                return found[0]
        known = find_out(head)
        self._keep(key, known, _ENTRY_BYTES + _COPIES * len(text))
        return known

    def _keep(self, key: Hashable, known: _T, num_bytes: int) -> None:
        with self._lock:
            if num_bytes > self._max_bytes or key in self._entries:
                return
            self._entries[key] = known, num_bytes
            self._num_bytes += num_bytes
            while self._num_bytes > self._max_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self._num_bytes -= freed


def split_head(conversation: Conversation) -> tuple[Conversation, Conversation]:
    """Part a conversation into system head with tools, and turns with all other fields."""
    count = conversation.num_head_messages
    messages = conversation.messages
    return (
        Conversation(messages[:count], conversation.tools),
        Conversation(messages[count:], (), conversation.fields),
    )


def join_head(head: Conversation, turns: Conversation) -> Conversation:
    """Undo `split_head`."""
    fields = {**turns.fields, **head.fields} if head.fields else turns.fields
    return replace(turns, messages=head.messages + turns.messages, tools=head.tools, fields=fields)


def _printed(head: Conversation) -> bytes | None:
    """Print a head so that equal texts are equal heads; None: JSON cannot hold it."""
    messages = [(message.role, message.content, message.fields) for message in head.messages]
    try:
        return orjson.dumps((messages, head.tools))
    except orjson.JSONEncodeError:
        return None
