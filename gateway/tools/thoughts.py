"""Tells thoughts from text in what a model writes: one block between `<think>` and `</think>`, before all else."""

from __future__ import annotations

from gateway.answer_pieces import Text, Thought
from gateway.tools.marks import num_begun
from gateway.tools.state_reader import StateReader

OPENING = "<think>"
CLOSING = "</think>"


def are_printed_by(template: str) -> bool:
    """Whether a chat template knows such a block."""
    return CLOSING in template


def is_begun_by(prompt: str) -> bool:
    """Whether a prompt ends with the opening of the block, so that the answer begins inside of it."""
    return prompt.rstrip().endswith(OPENING)


class ThoughtParser(StateReader):
    """Reads one answer. White space around thoughts belongs to their marks.

    Args:
        is_begun: the prompt has opened the block.
    """

    def __init__(self, *, is_begun: bool) -> None:
        super().__init__(self._at_thought if is_begun else self._at_start)

    def _at_start(self) -> bool:
        rest = self._buffer.lstrip()
        if rest.startswith(OPENING):
            self._buffer = rest[len(OPENING) :]
            self._state = self._at_thought
        elif self._is_final or not OPENING.startswith(rest):
            self._state = self._in_text
        else:
            return False
        return True

    def _at_thought(self) -> bool:
        self._buffer = self._buffer.lstrip()
        if self._buffer:
            self._state = self._in_thought
        return bool(self._buffer)

    def _in_thought(self) -> bool:
        buffer = self._buffer
        place = buffer.find(CLOSING)
        if place >= 0:
            self._think(buffer[:place].rstrip())
            self._buffer = buffer[place + len(CLOSING) :]
            self._state = self._behind
            return True
        end = len(buffer) if self._is_final else len(buffer[: len(buffer) - num_begun(buffer, CLOSING)].rstrip())
        self._think(buffer[:end])
        self._buffer = buffer[end:]
        return False

    def _behind(self) -> bool:
        self._buffer = self._buffer.lstrip()
        if self._buffer:
            self._state = self._in_text
        return bool(self._buffer)

    def _in_text(self) -> bool:
        if self._buffer:
            self._pieces.append(Text(self._buffer))
            self._buffer = ""
        return False

    def _think(self, text: str) -> None:
        if text:
            self._pieces.append(Thought(text))
