"""`x-ratelimit-*`: how far from a limit a client is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

Headers = list[tuple[bytes, bytes]]


class RateState(NamedTuple):
    """How a window stands."""

    limit: int
    remaining: int
    reset_seconds: float
    """Until all of it is there again."""


def limit_headers(what: str, states: Iterable[RateState]) -> Headers:
    """Print the state of which least remains, and of these the one that lasts longest; nothing where there is no limit.

    Args:
        what: `requests` or `tokens`.
        states: of all windows in which that is counted.
    """
    tightest = min(states, key=lambda state: (state.remaining, -state.reset_seconds), default=None)
    if tightest is None:
        return []
    values = {
        "limit": str(tightest.limit),
        "remaining": str(max(0, tightest.remaining)),
        "reset": duration(tightest.reset_seconds),
    }
    return [(f"x-ratelimit-{name}-{what}".encode(), value.encode()) for name, value in values.items()]


def duration(seconds: float) -> str:
    """Print a duration as OpenAI's headers do: `12ms`, `1s`, `6m0s`, `23h59m3s`."""
    if seconds < 1:
        return f"{int(seconds * 1000)}ms"
    minutes, whole_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{whole_seconds}s"
    return f"{minutes}m{whole_seconds}s" if minutes else f"{whole_seconds}s"
