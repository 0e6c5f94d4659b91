"""Stop strings over streamed text. Text only; knows nothing of tokens or requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scan:
    """What one piece of text led to."""

    text: str
    """May be sent now."""
    stopped: bool
    """A stop string is complete; nothing comes after `text`."""
    stop: str | None = None
    """That stop string."""


class StopMatcher:
    """Finds the stop string that is complete first, and holds back only what could still become one.

    The result does not depend on how the text is cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._first_chars = frozenset(stop[0] for stop in stops)
        self._longest = max(map(len, stops), default=0)
        self._held = ""

    def push(self, text: str) -> Scan:
        """Take more text."""
        if not self._stops:
            return Scan(text, stopped=False)
        buffer = self._held + text
        match = self._match(buffer)
        if match is not None:
            start, end = match
            self._held = ""
            return Scan(buffer[:start], stopped=True, stop=buffer[start:end])
        cut = self._hold_from(buffer)
        self._held = buffer[cut:]
        return Scan(buffer[:cut], stopped=False)

    def flush(self) -> str:
        """Give what was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _match(self, buffer: str) -> tuple[int, int] | None:
        """Find the match that ends first, from where to where; of those that end together, the longest."""
        ends = [(start + len(stop), start) for stop in self._stops if (start := buffer.find(stop)) >= 0]
        if not ends:
            return None
        end, start = min(ends)
        return start, end

    def _hold_from(self, buffer: str) -> int:
        """Find the first place from which the rest of the buffer is the beginning of a stop string."""
        for place in range(max(0, len(buffer) - self._longest + 1), len(buffer)):
            if buffer[place] in self._first_chars and any(stop.startswith(buffer[place:]) for stop in self._stops):
                return place
        return len(buffer)
