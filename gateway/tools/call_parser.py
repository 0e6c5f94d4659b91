"""Tells calls from text in what a model writes, however it is cut into pieces.

What only looks like a call is text, to the last character, and held back no longer than it looks like one. White space
around calls is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from gateway.answer_pieces import CallArguments, CallStart, Text
from gateway.tools.call_object import CallObject
from gateway.tools.formats import CallFormat
from gateway.tools.marks import num_begun
from gateway.tools.state_reader import StateReader


class CallParser(StateReader):
    """Reads one answer.

    Attributes:
        num_calls: that have begun.
        is_over: as many calls as are wanted have ended, with the mark behind them; what follows is not read.

    Args:
        form: how the model writes calls.
        tools: names that may be called. Behind a mark any name is a call, for it was meant as one.
        new_id: makes ids.
        max_calls: None: any number.
        is_whole: a call is given when it is complete, and one that breaks is text; else its arguments are given as they
            come, and where they break there is text.
    """

    def __init__(
        self,
        form: CallFormat,
        tools: Collection[str],
        new_id: Callable[[], str],
        *,
        max_calls: int | None = None,
        is_whole: bool = False,
    ) -> None:
        super().__init__(self._at_start if form.may_be_bare else self._in_text)
        self.num_calls = 0
        self._form = form
        self._tools = tools
        self._new_id = new_id
        self._max_calls = max_calls
        self._is_whole = is_whole
        self._read: list[str] = []
        """Of the call that is being read, as long as it may turn out to be text."""
        self._num_marked = 0
        """Characters of it that are blanks and a mark: they are text for sure if it is no call."""
        self._is_bare = False
        self._object: CallObject | None = None
        self._has_begun = False
        """Whether that call was given, in part."""

    def _at_start(self) -> bool:
        rest = self._buffer.lstrip()
        if not rest and not self._is_final:
            return False
        if rest.startswith("{"):
            return self._open(len(self._buffer) - len(rest), is_bare=True)
        self._state = self._in_text
        return True

    def _in_text(self) -> bool:
        buffer, mark = self._buffer, self._form.opening
        place = buffer.find(mark)
        end = len(buffer) - (0 if self._is_final else num_begun(buffer, mark)) if place < 0 else place
        if place >= 0 or not self._is_final:
            end = len(buffer[:end].rstrip())
        if end:
            self._pieces.append(Text(buffer[:end]))
            self._buffer = buffer[end:]
        return place >= 0 and self._open(place - end + len(mark), is_bare=False)

    def _open(self, num_marked: int, *, is_bare: bool) -> bool:
        """Begin to read a call behind so many characters."""
        self._read, self._buffer = [self._buffer[:num_marked]], self._buffer[num_marked:]
        self._num_marked, self._is_bare, self._has_begun = num_marked, is_bare, False
        self._state = self._before_list if self._form.is_list else self._before_object
        return True

    def _before_list(self) -> bool:
        if not self._skip_blanks():
            return self._is_final and self._fail()
        if self._buffer[0] != "[":
            return self._fail()
        self._read.append("[")
        self._buffer = self._buffer[1:]
        self._state = self._before_object
        return True

    def _before_object(self) -> bool:
        if not self._skip_blanks():
            return self._is_final and self._fail()
        self._object = CallObject(self._may_be_called, needs_arguments=self._is_bare)
        self._state = self._in_object
        return True

    def _in_object(self) -> bool:
        assert self._object is not None
        text, self._buffer = self._buffer, ""
        for place, char in enumerate(text):
            if not self._object.accepts(char):
                self._keep(text[:place])
                self._buffer = text[place:]
                return self._fail()
            if self._object.is_complete:
                self._buffer = text[place + 1 :]
                return self._end_call()
        self._keep(text)
        return self._is_final and self._fail()

    def _behind(self) -> bool:
        form, rest = self._form, self._buffer.lstrip()
        self._buffer = rest
        if not rest or (form.closing.startswith(rest) and rest != form.closing):
            if self._is_final:
                self._buffer = ""
            return False
        if form.closing and rest.startswith(form.closing):
            self._buffer = rest[len(form.closing) :]
            self._state = self._behind_all
            self.is_over = self.num_calls == self._max_calls
        elif self.num_calls == self._max_calls:
            self.is_over = True
        elif form.separator and rest.startswith(form.separator):
            self._open(len(form.separator), is_bare=self._is_bare)
            self._state = self._before_object
        elif form.may_be_bare and rest[0] == "{":
            self._open(0, is_bare=True)
        else:
            self._state = self._in_text
        return True

    def _behind_all(self) -> bool:
        self._buffer = self._buffer.lstrip()
        if self._buffer:
            self._state = self._in_text
        return bool(self._buffer)

    def _may_be_called(self, name: str) -> bool:
        return not self._is_bare or name in self._tools

    def _skip_blanks(self) -> bool:
        """Take blanks. Returns: whether there is something else."""
        rest = self._buffer.lstrip()
        self._read.append(self._buffer[: len(self._buffer) - len(rest)])
        self._buffer = rest
        return bool(rest)

    def _keep(self, text: str) -> None:
        """Keep what may still be text, and give arguments as they come."""
        if not self._has_begun:
            self._read.append(text)
        if not self._is_whole:
            self._give_arguments()

    def _give_arguments(self) -> None:
        assert self._object is not None
        fragment = self._object.take_arguments()
        if not fragment:
            return
        if not self._has_begun:
            assert self._object.name is not None
            self._has_begun = True
            self._pieces.append(CallStart(self.num_calls, self._new_id(), self._object.name))
            self.num_calls += 1
        self._pieces.append(CallArguments(self.num_calls - 1, fragment))

    def _end_call(self) -> bool:
        self._give_arguments()
        self._state = self._behind
        return True

    def _fail(self) -> bool:
        """Take it for text: its mark at once, and what came behind it is read again."""
        if not self._has_begun:
            read = "".join(self._read)
            if self._num_marked:
                self._pieces.append(Text(read[: self._num_marked]))
            self._buffer = read[self._num_marked :] + self._buffer
        self._has_begun = False
        self._state = self._in_text
        return True
