"""Passes an event stream on by whole events: where it breaks off, nobody is left with half of one. Changes no byte."""

from __future__ import annotations

import re

MAX_HELD_BYTES = 1_000_000
"""Of an event that has not ended; what is longer goes on in pieces."""

_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_END = re.compile(rb"\n\n|\r\n\r\n|\r\r")


class WholeEvents:
    """One stream.

    Attributes:
        is_at_border: whether what was passed on ends with a whole event.
    """

    __slots__ = ("_held", "is_at_border")

    def __init__(self) -> None:
        self._held = b""
        self.is_at_border = True

    def feed(self, piece: bytes) -> bytes:
        """Take the next bytes, and give all that have become whole events; the others are held."""
        if piece.endswith(_ENDS):  # nearly always
            self.is_at_border = True
            return self._take() + piece if self._held else piece
        # An end may lie across two pieces.
        searched = max(0, len(self._held) - len(_ENDS[1]) + 1)
        self._held += piece
        if self._held.endswith(_ENDS):
            self.is_at_border = True
            return self._take()
        end = max((match.end() for match in _END.finditer(self._held, searched)), default=0)
        if end:
            self.is_at_border = True
            whole, self._held = self._held[:end], self._held[end:]
            return whole
        if len(self._held) > MAX_HELD_BYTES:
            self.is_at_border = False
            return self._take()
        return b""

    def end(self, piece: bytes = b"") -> bytes:
        """Take the last bytes, and give everything that was not passed on yet."""
        return self._take() + piece

    def _take(self) -> bytes:
        held, self._held = self._held, b""
        return held
