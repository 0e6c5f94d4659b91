"""One scope's memory, as one request sees it: the assistant turns that were returned, each at its place.

**Place.** A turn is remembered at what was said before it, not by its text alone, so that a "Yes" of one conversation
never gets the reasoning of another's. The place is a chain of digests over the messages before the turn, each in the
form in which equivalent turns are equal: whether earlier turns were repaired does not move it. A turn that merely looks
the same elsewhere is not looked for: where what was said before differs, so do the tokens before, and no cache would
gain by it.

**Head.** The system head is a digest of its own. A clock in it does not keep text, arguments and ids from being
repaired, for those only change between equivalent forms. Reasoning is another matter: it is put back only under
the very head that it was thought under.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson

from gateway.conversation import Conversation, Message
from gateway.normalize.memory import TurnMemory
from gateway.normalize.turns import calls_of, said
from gateway.tokenizer import TokenArray


class Place(NamedTuple):
    """What was said before a turn."""

    head: bytes
    """Digest of the system head."""
    turns: bytes
    """Digest of the messages between the head and the turn."""


@dataclass(frozen=True, slots=True, eq=False)
class ReturnedTurn:
    """An assistant turn as the engine wrote it."""

    message: Message
    token_ids: TokenArray | None
    """[num_tokens], int32, without the end-of-sequence token; None: not known, or not for this head."""


@dataclass(frozen=True, slots=True, eq=False)
class NextTurn:
    """Where the answer to a prompt will stand; it is remembered when it is returned."""

    recollection: Recollection
    places: Sequence[Place]
    """In the canonical conversation, and in the one that rules in audit mode would have made of it."""

    def remember(self, message: Message, token_ids: Sequence[int] | None = None) -> None:
        """Remember the answer; see `Recollection.remember`."""
        for place in self.places:
            self.recollection.remember(place, message, token_ids)


class Recollection:
    """Finds and remembers for one scope. For one request, one step at a time: it keeps the digests of its messages.

    Attributes:
        scope: whose memory it is.
    """

    def __init__(self, memory: TurnMemory, scope: str) -> None:
        self._memory = memory
        self.scope = scope
        self._forms: dict[int, tuple[Message, bytes]] = {}
        self._digests: dict[int, bytes] = {}

    def places(self, conversation: Conversation) -> Iterator[Place]:
        """Yield the place of each message in order, then that of the turn that would come next.

        A message of the head has the place of the first turn.
        """
        num_head = conversation.num_head_messages
        head = _digest(b"head", *(self._digest(message) for message in conversation.messages[:num_head]))
        turns = b""
        calls: dict[str, int] = {}
        for index, message in enumerate(conversation.messages):
            yield Place(head, turns)
            if index >= num_head:
                # A result belongs to a call by its number, for ids change.
                number = calls.get(message.fields["tool_call_id"], -1) if message.role == "tool" else -1
                turns = _digest(turns, self._digest(message), number.to_bytes(4, "little", signed=True))
                calls = {call["id"]: number for number, call in enumerate(calls_of(message))} or calls
        yield Place(head, turns)

    def turns_of(self, conversation: Conversation, *, same_head: bool) -> dict[int, ReturnedTurn]:
        """Find the turns of a conversation that were returned. The last message is none: it is there to be continued.

        Args:
            conversation: as a client sent it back.
            same_head: only turns that were returned under this system head.

        Returns: by the index of the message, which is equivalent to the turn and perhaps not equal.
        """
        indices = [index for index, message in enumerate(conversation.messages[:-1]) if message.role == "assistant"]
        if not indices or not self._memory.has(self.scope):
            return {}
        turns = {}
        for index, place in zip(range(indices[-1] + 1), self.places(conversation), strict=False):
            message = conversation.messages[index]
            if message.role == "assistant" and (turn := self._recall(place, message, same_head=same_head)):
                turns[index] = turn
        return turns

    def token_ids_of(self, conversation: Conversation) -> dict[int, TokenArray]:
        """Return the tokens of the turns that were returned under this head, by the index of the message.

        They stand for the message only where they decode to what is rendered of it.
        """
        turns = self.turns_of(conversation, same_head=True)
        return {index: turn.token_ids for index, turn in turns.items() if turn.token_ids is not None}

    def next_turn(self, *conversations: Conversation) -> NextTurn:
        """Find where the answer to a prompt will stand.

        Args:
            conversations: forms of the prompt in which it may come back.
        """
        different = {id(conversation): conversation for conversation in conversations}.values()
        places = {place: None for conversation in different for *_, place in [self.places(conversation)]}
        return NextTurn(self, tuple(places))

    def remember(self, place: Place, message: Message, token_ids: Sequence[int] | None = None) -> None:
        """Remember an assistant turn that is returned to the client; the last one at a place counts.

        Args:
            place: of the turn in the canonical conversation.
            message: in the form that the rules would give it.
            token_ids: that the engine generated for it, without the end-of-sequence token.
        """
        form = said(message)
        ids = None if token_ids is None else np.array(token_ids, dtype=np.int32)
        self.keep(_key(place, form, same_head=True), ReturnedTurn(message, ids))
        self.keep(_key(place, form, same_head=False), ReturnedTurn(message, None))

    def find(self, key: bytes) -> Any:
        """Return what a rule remembers under a digest; None: nothing."""
        return self._memory.find(self.scope, key)

    def keep(self, key: bytes, value: object) -> None:
        """Remember for a rule, in the place of what was there."""
        self._memory.keep(self.scope, key, value)

    def keep_first(self, key: bytes, value: object) -> Any:
        """Remember for a rule unless something is. Returns: what is remembered."""
        return self._memory.keep_first(self.scope, key, value)

    def _recall(self, place: Place, message: Message, *, same_head: bool) -> ReturnedTurn | None:
        form = self._form(message)
        found: ReturnedTurn | None = self.find(_key(place, form, same_head=True))
        if found is None and not same_head:
            found = self.find(_key(place, form, same_head=False))
        return found if found is not None and said(found.message) == form else None

    def _form(self, message: Message) -> bytes:
        """Give what must be equal; once for all rules, which leave most messages as they are."""
        known = self._forms.get(id(message))
        if known is None:
            form = said(message) if message.role == "assistant" else _exact(message)
            known = self._forms[id(message)] = (message, form)
        return known[1]

    def _digest(self, message: Message) -> bytes:
        known = self._digests.get(id(message))
        if known is None:
            known = self._digests[id(message)] = _digest(message.role.encode(), self._form(message))
        return known


def digest_of(kind: str, value: object) -> bytes:
    """Make a key of a JSON value; the order of keys in objects does not count.

    Args:
        kind: whose key it is, so that two rules never meet.
        value: what it is about.
    """
    return _digest(kind.encode(), orjson.dumps(value, option=orjson.OPT_SORT_KEYS))


def _exact(message: Message) -> bytes:
    return orjson.dumps([message.content, message.fields.get("name")], option=orjson.OPT_SORT_KEYS)


def _key(place: Place, form: bytes, *, same_head: bool) -> bytes:
    return _digest(b"turn", place.head if same_head else b"", place.turns, form)


def _digest(*values: bytes) -> bytes:
    """SHA-256 over values with their lengths: no two sequences of values are the same bytes."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(len(value).to_bytes(8, "little"))
        digest.update(value)
    return digest.digest()
