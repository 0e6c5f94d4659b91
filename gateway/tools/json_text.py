"""One JSON value, checked character by character as it arrives.

What was accepted is always the beginning of a valid value, so it can be handed on before the rest is there.
"""

from __future__ import annotations

import enum
import re

from gateway.checks import MAX_DEPTH

BLANKS = frozenset(" \t\n\r")

_CLOSERS = {"{": "}", "[": "]"}
_WORDS = ("true", "false", "null")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_BEGUN = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.(?:[0-9]+(?:[eE][+-]?[0-9]*)?)?|[eE][+-]?[0-9]*)?)?")
_ESCAPED = frozenset('"\\/bfnrtu')
_HEX = frozenset("0123456789abcdefABCDEF")
_NUM_HEX = 4


class _Wants(enum.Enum):
    """What may come next."""

    VALUE = enum.auto()
    VALUE_OR_END = enum.auto()
    KEY = enum.auto()
    KEY_OR_END = enum.auto()
    COLON = enum.auto()
    COMMA_OR_END = enum.auto()
    STRING = enum.auto()
    ESCAPED = enum.auto()
    HEX = enum.auto()
    SCALAR = enum.auto()
    NOTHING = enum.auto()


class JsonText:
    """Checks one value, from its first character on: blanks before it are none of it.

    Deeper nesting than `MAX_DEPTH` is refused: a client that sends the value back would be, too.
    """

    def __init__(self) -> None:
        self._wants = _Wants.VALUE
        self._closers: list[str] = []
        self._scalar = ""
        """The word or number that has begun."""
        self._is_key = False
        self._num_hex = 0

    @property
    def is_complete(self) -> bool:
        """Whether it may end here. Only a number may go on all the same."""
        if self._wants is _Wants.SCALAR:
            return not self._closers and _is_scalar(self._scalar)
        return self._wants is _Wants.NOTHING

    def accepts(self, char: str) -> bool:
        """Take one more character. Returns: False: it cannot follow, and was not taken."""
        match self._wants:
            case _Wants.STRING | _Wants.ESCAPED | _Wants.HEX:
                return self._goes_on(char)
            case _Wants.SCALAR:
                begun = self._scalar + char
                if _NUMBER_BEGUN.fullmatch(begun) or any(word.startswith(begun) for word in _WORDS):
                    self._scalar = begun
                    return True
                if not self._closers or not _is_scalar(self._scalar):
                    return False
                self._end_value()
        return self._between(char)

    def _between(self, char: str) -> bool:
        """Take a character outside of strings and words."""
        if char in BLANKS:
            return bool(self._closers)
        match self._wants:
            case _Wants.COLON:
                return self._go(char == ":", _Wants.VALUE)
            case _Wants.KEY | _Wants.KEY_OR_END if char == '"':
                self._is_key = True
                return self._go(True, _Wants.STRING)
            case _Wants.VALUE | _Wants.VALUE_OR_END if char != "]" or self._wants is _Wants.VALUE:
                return self._begins(char)
            case _Wants.KEY_OR_END | _Wants.VALUE_OR_END | _Wants.COMMA_OR_END if char == self._closers[-1]:
                self._closers.pop()
                self._end_value()
                return True
            case _Wants.COMMA_OR_END:
                return self._go(char == ",", _Wants.KEY if self._closers[-1] == "}" else _Wants.VALUE)
        return False

    def _begins(self, char: str) -> bool:
        if char in _CLOSERS:
            self._closers.append(_CLOSERS[char])
            return self._go(len(self._closers) <= MAX_DEPTH, _Wants.KEY_OR_END if char == "{" else _Wants.VALUE_OR_END)
        if char == '"':
            self._is_key = False
            return self._go(True, _Wants.STRING)
        self._scalar = char
        return self._go(char == "-" or ("0" <= char <= "9") or char in "tfn", _Wants.SCALAR)

    def _goes_on(self, char: str) -> bool:
        """Take a character of a string."""
        match self._wants:
            case _Wants.ESCAPED:
                self._num_hex = 0
                return self._go(char in _ESCAPED, _Wants.HEX if char == "u" else _Wants.STRING)
            case _Wants.HEX:
                self._num_hex += 1
                return self._go(char in _HEX, _Wants.STRING if self._num_hex == _NUM_HEX else _Wants.HEX)
        if char == '"':
            if self._is_key:
                self._wants = _Wants.COLON
            else:
                self._end_value()
            return True
        return self._go(char >= " ", _Wants.ESCAPED if char == "\\" else _Wants.STRING)

    def _go(self, is_right: bool, wants: _Wants) -> bool:
        if is_right:
            self._wants = wants
        return is_right

    def _end_value(self) -> None:
        self._wants = _Wants.COMMA_OR_END if self._closers else _Wants.NOTHING


def _is_scalar(text: str) -> bool:
    return text in _WORDS or _NUMBER.fullmatch(text) is not None
