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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson

from gateway.conversation import Conversation, Message
from gateway.normalize.memory import TurnMemory
from gateway.normalize.turns import calls_of, said
from gateway.tokenizer import TokenArray

_NOTHING = bytes(32)
"""In the place of a digest, where nothing was said."""


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
    form: Callable[[Message], Message] = lambda message: message
    """What the rules make of the answer when it comes back."""

    def remember(self, message: Message, token_ids: Sequence[int] | None = None) -> None:
        """Remember the answer; see `Recollection.remember`."""
        message = self.form(message)
        for place in self.places:
            self.recollection.remember(place, message, token_ids)


class _Said(NamedTuple):
    """What a message says."""

    message: Message
    form: bytes
    """Of an assistant turn: equal for turns that mean the same."""
    digest: bytes


class Recollection:
    """Finds and remembers for one scope. For one request, one step at a time: it keeps the digests of its messages.

    Attributes:
        scope: whose memory it is.
    """

    def __init__(self, memory: TurnMemory, scope: str) -> None:
        self._memory = memory
        self.scope = scope
        # Every rule that asks walks over the same messages, nearly all of them the same objects.
        self._said: dict[int, _Said] = {}
        self._places: tuple[tuple[Message, ...], list[Place]] = ((), [])
        self._recalled: dict[tuple[Place, bytes], tuple[ReturnedTurn | None, ReturnedTurn | None]] = {}

    def places(self, conversation: Conversation) -> Sequence[Place]:
        """Return the place of each message in order, then that of the turn that would come next.

        A message of the head has the place of the first turn.
        """
        messages, places = self._places
        if messages is not conversation.messages or not places:
            places = self._walk(conversation)
            self._places = (conversation.messages, places)
        return places

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
        places = self.places(conversation)
        for index in indices:
            turn = self._recall(places[index], conversation.messages[index], same_head=same_head)
            if turn is not None:
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
        places = {self.places(conversation)[-1]: None for conversation in conversations}
        return NextTurn(
            Recollection(self._memory, self.scope), tuple(places)
        )  # a generation outlives what we know here

    def remember(self, place: Place, message: Message, token_ids: Sequence[int] | None = None) -> None:
        """Remember an assistant turn that is returned to the client; the last one at a place counts.

        Args:
            place: of the turn in the canonical conversation.
            message: in the form that the rules would give it.
            token_ids: that the engine generated for it, without the end-of-sequence token.
        """
        form = self._say(message)
        ids = None if token_ids is None else np.array(token_ids, dtype=np.int32)
        self.keep(_key(place, form, same_head=True), ReturnedTurn(message, ids))
        self.keep(_key(place, form, same_head=False), ReturnedTurn(message, None))
        self._recalled.clear()

    def find(self, key: bytes) -> Any:
        """Return what a rule remembers under a digest; None: nothing."""
        return self._memory.find(self.scope, key)

    def keep(self, key: bytes, value: object) -> None:
        """Remember for a rule, in the place of what was there."""
        self._memory.keep(self.scope, key, value)

    def keep_first(self, key: bytes, value: object) -> Any:
        """Remember for a rule unless something is. Returns: what is remembered."""
        return self._memory.keep_first(self.scope, key, value)

    def _walk(self, conversation: Conversation) -> list[Place]:
        num_head = conversation.num_head_messages
        head = _chained(b"head", *(self._say(message).digest for message in conversation.messages[:num_head]))
        places = [Place(head, _NOTHING)] * (num_head + 1)
        calls: dict[str, int] = {}
        for message in conversation.messages[num_head:]:
            # A result belongs to a call by its number, for ids change.
            number = calls.get(message.fields["tool_call_id"], -1) if message.role == "tool" else -1
            result = number.to_bytes(4, "little", signed=True)
            places.append(Place(head, _chained(b"turn", result, places[-1].turns, self._say(message).digest)))
            calls = {call["id"]: number for number, call in enumerate(calls_of(message))} or calls
        return places

    def _recall(self, place: Place, message: Message, *, same_head: bool) -> ReturnedTurn | None:
        turn = self._say(message)
        if (place, turn.digest) not in self._recalled:
            exact = self._look_up(_key(place, turn, same_head=True), turn)
            other = None if exact else self._look_up(_key(place, turn, same_head=False), turn)
            self._recalled[place, turn.digest] = exact, other
        exact, other = self._recalled[place, turn.digest]
        return exact if same_head else exact or other

    def _look_up(self, key: bytes, wanted: _Said) -> ReturnedTurn | None:
        found: ReturnedTurn | None = self.find(key)
        if found is None or found.message == wanted.message or said(found.message) == wanted.form:
            return found
        return None

    def _say(self, message: Message) -> _Said:
        known = self._said.get(id(message))
        if known is None:
            is_assistant = message.role == "assistant"
            form = said(message) if is_assistant else _exact(message)
            digest = hashlib.sha256(b"said %b %b" % (message.role.encode(), form)).digest()
            known = self._said[id(message)] = _Said(message, form if is_assistant else b"", digest)
        return known


def digest_of(kind: str, value: object) -> bytes:
    """Make a key of a JSON value; the order of keys in objects does not count.

    Args:
        kind: whose key it is, so that two rules never meet; without a blank.
        value: what it is about.
    """
    return hashlib.sha256(b"rule %b %b" % (kind.encode(), orjson.dumps(value, option=orjson.OPT_SORT_KEYS))).digest()


def _exact(message: Message) -> bytes:
    return orjson.dumps([message.content, message.fields.get("name")], option=orjson.OPT_SORT_KEYS)


def _key(place: Place, turn: _Said, *, same_head: bool) -> bytes:
    return _chained(b"keys", place.head if same_head else _NOTHING, place.turns, turn.digest)


def _chained(kind: bytes, *values: bytes) -> bytes:
    """SHA-256 over values whose lengths follow from the kind, which has four bytes: so no two are the same bytes."""
    return hashlib.sha256(kind + b"".join(values)).digest()
