"""What earlier requests of a conversation stated behind its turns, so that it can be stated again where it stood.

A conversation has no name, so it is told by its head, by all that users and tools said so far, and by the values that
moved. That must not mix two conversations of one tenant that began alike: a text of one end user would come into the
prompt of another. So a statement is only found again for values that are equal but for clocks. Where no second
conversation began like this words with digits may differ, too, and, where the body names the end user, anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.conversation import Conversation
from gateway.normalize.recollection import Recollection, digest_of
from gateway.normalize.volatile_kinds import KINDS

_KIND = "statement"
_END_USER_FIELDS = ("user", "safety_identifier", "prompt_cache_key")
"""Of the body: they tell end users apart."""
_MAX_VARIANTS = 8
_TIMES = re.compile(r"\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b|\b\d{1,2}:\d{2}(?: ?[AaPp][Mm]\b)?")
"""Beside clocks and dates: all of them only tell when, and so may differ."""
_WORD_WITH_DIGIT = re.compile(r"[\w-]*\d[\w-]*")


@dataclass(frozen=True, slots=True)
class Statement:
    """Values that were stated behind one turn of a user."""

    values: tuple[str, ...]
    text: str
    turn: int
    """Of the user's turns, from 0 on."""
    earlier: tuple[bytes, str] | None
    """Key and text of the one before it in the same conversation."""


class Statements:
    """Those of one conversation."""

    def __init__(self, recollection: Recollection, head: bytes, conversation: Conversation, places: Sequence[int]):
        """Find out where they would be kept.

        Args:
            recollection: of the scope.
            head: digest of the canonical head.
            conversation: with the client's own words only.
            places: of the user's turns among the messages.
        """
        self._recollection = recollection
        who = [conversation.fields.get(name) for name in _END_USER_FIELDS]
        self._names_end_user = any(who)
        self._keys = list(_keys([head.hex(), who], conversation, places))

    def same_turn(self, values: Mapping[str, str]) -> dict[int, str] | None:
        """Return what is stated behind each turn, if the newest one was stated with the same values, clocks apart."""
        found = self._exact(self._variants(self._keys[-1]), values)
        return None if found is None else self._chain(found)

    def next_turn(self, values: Mapping[str, str], text: str) -> dict[int, str]:
        """State values behind the newest turn; return what is stated behind each turn."""
        newest = len(self._keys) - 1
        earlier = next(filter(None, (self._earlier(turn, values) for turn in range(newest - 1, -1, -1))), None)
        link = None if earlier is None else (self._keys[earlier.turn], earlier.text)
        statement = Statement(tuple(values.values()), text, newest, link)
        others = [other for other in self._variants(self._keys[newest]) if other.values != statement.values]
        self._recollection.keep(self._keys[newest], tuple([statement, *others][:_MAX_VARIANTS]))
        return self._chain(statement)

    def _variants(self, key: bytes) -> Sequence[Statement]:
        return self._recollection.find(key) or ()

    def _exact(self, variants: Sequence[Statement], values: Mapping[str, str]) -> Statement | None:
        wanted = [_without_clocks(value) for value in values.values()]
        return next((one for one in variants if list(map(_without_clocks, one.values)) == wanted), None)

    def _earlier(self, turn: int, values: Mapping[str, str]) -> Statement | None:
        variants = self._variants(self._keys[turn])
        found = self._exact(variants, values)
        if found is None and len(variants) == 1 and self._names_end_user:
            return variants[0]
        if found is None and len(variants) == 1:
            wanted = [_without_digits(value) for value in values.values()]
            found = variants[0] if list(map(_without_digits, variants[0].values)) == wanted else None
        return found

    def _chain(self, statement: Statement) -> dict[int, str]:
        chain = {statement.turn: statement.text}
        while statement.earlier is not None:
            key, text = statement.earlier
            found = next((one for one in self._variants(key) if one.text == text), None)
            if found is None:
                break
            statement = found
            chain[statement.turn] = statement.text
        return chain


def _keys(beginning: object, conversation: Conversation, places: Sequence[int]) -> Iterator[bytes]:
    """Yield a digest of what was said up to each turn of the user's; the assistant's own words tell nothing apart."""
    key = digest_of(_KIND, beginning)
    start = conversation.num_head_messages
    for place in places:
        said = [
            (message.role, message.content)
            for message in conversation.messages[start : place + 1]
            if message.role != "assistant"
        ]
        key = digest_of(_KIND, [key.hex(), said])
        start = place + 1
        yield key


def _without_clocks(value: str) -> str:
    return _TIMES.sub("", KINDS["date"].sub("", KINDS["clock"].sub("", value)))


def _without_digits(value: str) -> str:
    return _WORD_WITH_DIGIT.sub("", _without_clocks(value))
