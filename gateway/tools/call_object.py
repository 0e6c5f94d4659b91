"""One call as models write it, an object with a name and arguments, read as it arrives.

`{"name": "look", "arguments": {"at": 5}}`; Llama writes `parameters`, and a few models the arguments as a string.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from gateway.chat_messages import MAX_NAME_CHARS
from gateway.tools.json_text import BLANKS, JsonText

_ARGUMENTS = ("arguments", "parameters")


class CallObject:
    """Reads one object, from its brace on.

    Attributes:
        name: of the tool; None: not known yet.
        is_complete: the object has ended, and is a call.

    Args:
        is_tool: whether a name is one that may be called.
        needs_arguments: without them it is no call; else they are `{}`.
    """

    def __init__(self, is_tool: Callable[[str], bool], *, needs_arguments: bool) -> None:
        self.name: str | None = None
        self.is_complete = False
        self._is_tool = is_tool
        self._needs_arguments = needs_arguments
        self._wants = "{"
        """What comes next: one of `{`, `key`, `key}`, `:`, `value` and `,}`."""
        self._key = ""
        self._seen: set[str] = set()
        self._reading: JsonText | None = None
        """The key or value that is being read."""
        self._read: list[str] = []
        self._fragments: list[str] = []
        """Of arguments; not taken yet."""

    def accepts(self, char: str) -> bool:
        """Take one more character. Returns: False: this is no call."""
        if self._reading is not None:
            if self._reading.accepts(char):
                self._keep(char)
                return True
            if not self._reading.is_complete or not self._end_part():
                return False
        if char in BLANKS:
            return True
        return self._between(char)

    def take_arguments(self) -> str:
        """Give what came of the arguments since the last time; nothing while the name is not known."""
        if self.name is None:
            return ""
        fragments, self._fragments = self._fragments, []
        return "".join(fragments)

    def _between(self, char: str) -> bool:
        wants = self._wants
        if wants in ("{", ":") and char == wants:
            self._wants = "key}" if wants == "{" else "value"
        elif wants == ",}" and char == ",":
            self._wants = "key"
        elif wants in ("key}", ",}") and char == "}":
            return self._end()
        elif (wants in ("key", "key}") and char == '"') or wants == "value":
            self._reading, self._read = JsonText(), []
            if not self._reading.accepts(char):
                return False
            self._keep(char)
        else:
            return False
        return True

    @property
    def _streams(self) -> bool:
        """Whether what is read is handed on as it comes: arguments that are an object."""
        return self._wants == "value" and self._key in _ARGUMENTS and self._read[:1] == ["{"]

    def _keep(self, char: str) -> None:
        if not self._read or not self._streams:
            self._read.append(char)
        if self._streams:
            self._fragments.append(char)

    def _end_part(self) -> bool:
        """Look at the key or value that is over."""
        streamed, text, self._reading = self._streams, "".join(self._read), None
        if self._wants != "value":
            self._key = json.loads(text)
            kind = "arguments" if self._key in _ARGUMENTS else self._key
            if kind in self._seen:
                return False
            self._seen.add(kind)
            self._wants = ":"
            return True
        self._wants = ",}"
        if self._key == "name":
            self.name = _string(text)
            return self.name is not None and 0 < len(self.name) <= MAX_NAME_CHARS and self._is_tool(self.name)
        if self._key in _ARGUMENTS and not streamed:
            return self._unwrap(text)
        return True

    def _unwrap(self, text: str) -> bool:
        """Accept arguments that are printed as a string, or null."""
        value = "{}" if text == "null" else _string(text)
        if value is None or not is_object(value):
            return False
        self._fragments.append(value)
        return True

    def _end(self) -> bool:
        if self.name is None:
            return False
        if "arguments" not in self._seen:
            if self._needs_arguments:
                return False
            self._fragments.append("{}")
        self.is_complete = True
        return True


def is_object(text: str) -> bool:
    """Whether a text is one JSON object."""
    checked, text = JsonText(), text.strip()
    return text[:1] == "{" and all(map(checked.accepts, text)) and checked.is_complete


def _string(text: str) -> str | None:
    """Read a JSON string; None: it is another value, or holds half a character."""
    if text[0] != '"':
        return None
    value = str(json.loads(text))
    return None if any("\ud800" <= char <= "\udfff" for char in value) else value
