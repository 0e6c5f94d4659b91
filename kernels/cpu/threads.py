"""Parts of one kernel call side by side, each a compiled function that lets go of the interpreter lock.

As many as torch has threads, the caller's included, and none of numba's own: its pools spin or sleep beside torch's, and
a parallel region that finds a core taken waits for milliseconds. Within a step one call follows the other after some
hundred microseconds, and a thread that sleeps needs 50 to wake up: so these watch for the next part for a moment, and
sleep when none comes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from kernels.cpu.jit import exact
from kernels.cpu.watch import watch

_WATCHES = 8000  # of some 40 ns


def run(parts: Sequence[Callable[[], None]]) -> None:
    """Call all parts, the first one here; returns when all have returned, or raises what one of them raised."""
    if len(parts) == 1:
        parts[0]()
    else:
        _team(len(parts) - 1).run(parts)


class _Team:
    """Threads that work for one caller at a time."""

    def __init__(self, size: int) -> None:
        self._turn = threading.Lock()
        self._helpers = [_Helper() for _ in range(size)]

    def run(self, parts: Sequence[Callable[[], None]]) -> None:
        with self._turn:
            for helper, part in zip(self._helpers, parts[1:], strict=True):
                helper.give(part)
            try:
                parts[0]()
            finally:
                errors = [error for helper in self._helpers if (error := helper.join()) is not None]
            if errors:
                raise errors[0]


class _Helper:
    """A thread that takes one part after the other.

    Two counters say how many parts were given and done, for who watches; two locks say the same to who sleeps.
    """

    def __init__(self) -> None:
        self._given, self._done = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._may_start, self._has_ended = threading.Lock(), threading.Lock()
        self._may_start.acquire()
        self._has_ended.acquire()
        self._part: Callable[[], None] = _nothing
        self._error: BaseException | None = None
        threading.Thread(target=self._work, name="kernels", daemon=True).start()

    def give(self, part: Callable[[], None]) -> None:
        """Start a part."""
        self._part = part
        self._given[0] += 1
        self._may_start.release()

    def join(self) -> BaseException | None:
        """Wait for its end; return what it raised."""
        _watch_for(self._done, self._given[0])
        self._has_ended.acquire()
        error, self._error = self._error, None
        return error

    def _work(self) -> None:
        while True:
            _watch_for(self._given, self._done[0] + 1)
            self._may_start.acquire()
            try:
                self._part()
            except BaseException as error:
                self._error = error
            self._done[0] += 1
            self._has_ended.release()


@exact
def _watch_for(counter: np.ndarray, number: int) -> None:
    """Return when counter[0] is at least `number`, or after a moment."""
    for _ in range(_WATCHES):
        if watch(counter) >= number:
            return


def _nothing() -> None:
    pass


@cache
def _team(size: int) -> _Team:
    return _Team(size)
