"""Slows down whoever guesses the admin key: wrong ones are counted, from all clients together."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from gateway.errors import RateLimitError

MAX_WRONG = 10
WINDOW_SECONDS = 60.0


class Guesses:
    """The last wrong keys."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: deque[float] = deque(maxlen=MAX_WRONG)

    def check(self) -> None:
        """Let one more key be tried.

        Raises: RateLimitError: too many were wrong lately; a right one has to wait as well, or guessing would go on.
        """
        if len(self._times) < MAX_WRONG:
            return
        wait_seconds = WINDOW_SECONDS - (self._clock() - self._times[0])
        if wait_seconds > 0:
            seconds = math.ceil(wait_seconds)
            raise RateLimitError(
                f"{MAX_WRONG} wrong admin keys within a minute; try again in {seconds} s", retry_after_seconds=seconds
            )

    def note_wrong(self) -> None:
        """Count a wrong key."""
        self._times.append(self._clock())
