"""Where prompts are prepared: short ones at once, long ones in threads, very long ones in a thread of their own.

So no prompt stops the event loop, and a few very long ones hold up only each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

from gateway.backends.base import BackendUnavailableError

THREAD_FROM_BYTES = 4096
"""About 1 ms of tokenizing, at 0.1 ms for 450 characters on a slow core; a thread costs about 0.1 ms."""
LARGE_FROM_BYTES = 1_000_000
"""About 0.2 s of work, and more than most models' context."""
MAX_WAITING_BYTES = 256_000_000
"""Bodies that are held in memory for a thread."""
_NUM_THREADS = 2

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class PromptThreads:
    """A few threads, started when they are first needed.

    Args:
        from_bytes: smaller bodies take none.
        max_waiting_bytes: bodies that are held in memory for one.
    """

    def __init__(self, *, from_bytes: int = THREAD_FROM_BYTES, max_waiting_bytes: int = MAX_WAITING_BYTES) -> None:
        self._from_bytes = from_bytes
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="prompts")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="large-prompts")
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting_bytes = 0

    async def run(self, num_bytes: int, work: Callable[[*_Ts], _T], *arguments: *_Ts) -> _T:
        """Call `work` where a body of that size belongs; what is still queued when the caller leaves never runs.

        Raises: BackendUnavailableError: too much waits already.
        """
        if num_bytes < self._from_bytes:
            return work(*arguments)
        if self._waiting_bytes and self._waiting_bytes + num_bytes > self._max_waiting_bytes:
            raise BackendUnavailableError("too many long prompts wait to be tokenized; try again later")
        pool = self._large if num_bytes >= LARGE_FROM_BYTES else self._pool
        self._waiting_bytes += num_bytes
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work, *arguments)
        finally:
            self._waiting_bytes -= num_bytes

    def close(self) -> None:
        """Start nothing more."""
        for pool in (self._pool, self._large):
            pool.shutdown(wait=False, cancel_futures=True)
