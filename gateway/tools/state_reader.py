"""Reading by states what comes in pieces of any length: the loop that such readers have in common."""

from __future__ import annotations

from collections.abc import Callable

from gateway.answer_pieces import Piece


class StateReader:
    """Reads one text. A state takes what it can from the buffer, and tells whether another step may follow at once.

    Attributes:
        is_over: what follows is not read.

    Args:
        state: the first one.
    """

    def __init__(self, state: Callable[[], bool]) -> None:
        self.is_over = False
        self._state = state
        self._buffer = ""
        """Not decided yet."""
        self._pieces: list[Piece] = []
        self._is_final = False

    def push(self, text: str) -> list[Piece]:
        """Take more text, give what is certain now."""
        self._buffer += text
        while not self.is_over and self._state():
            pass
        pieces, self._pieces = self._pieces, []
        return pieces

    def flush(self) -> list[Piece]:
        """Give what is left when no more text comes."""
        self._is_final = True
        return self.push("")
