"""The names of a history's beginnings: equal names mean equal beginnings."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from operator import attrgetter

import orjson

from gateway.context.lazy import Lazy
from gateway.conversation import Conversation

_DIGEST_BYTES = 16
_said = attrgetter("role", "content", "fields")


class Beginnings(Lazy[bytes]):
    """Digests, each made when it is asked for: of the head with the tools, then with each message more.

    A digest goes on from the closest one that was made before. In between all messages are written in one call, for
    there may be ten thousand.
    """

    def __init__(self, conversation: Conversation) -> None:
        self._messages = conversation.messages
        self._num_head = conversation.num_head_messages
        super().__init__(len(self._messages) - self._num_head + 1, lambda index: self.name(self._num_head + index))
        tools = orjson.dumps(list(conversation.tools))
        self._states = {0: blake2b(tools, digest_size=_DIGEST_BYTES)}

    def name(self, num_messages: int) -> bytes:
        """Name the beginning of so many messages, at least those of the head."""
        start = max(known for known in self._states if known <= num_messages)
        state = self._states[start].copy()
        state.update(_written(list(map(_said, self._messages[start:num_messages]))))
        self._states[num_messages] = state
        return state.digest()

    def learn(self, digests: Mapping[int, bytes]) -> None:
        """Take entries that were asked for of an equal beginning."""
        self._made.update(digests)

    @property
    def asked_for(self) -> Mapping[int, bytes]:
        """The entries so far."""
        return dict(self._made)


def _written(messages: list[object]) -> bytes:
    """Write messages so that they are the same bytes in one piece and in several."""
    return orjson.dumps(messages, default=dict)[1:-1] + b"," if messages else b""
