"""Where prompts are prepared: short ones at once, long ones in threads, very long ones in a thread of their own.

So no prompt stops the event loop, and a few very long ones hold up only each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

from gateway.backends.base import BackendUnavailableError

THREAD_FROM_BYTES = 32_768
"""About 1 ms of parsing, rules and template for a body of which nothing was seen before; a thread costs about 0.1 ms."""
TOKENIZING_WEIGHT = 8
"""What a character costs that is tokenized, against a byte of a body: 0.1 ms for 450 of them on a slow core."""
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

    async def run(self, num_bytes: int, work: Callable[[*_Ts], _T], *arguments: *_Ts, num_new_chars: int = 0) -> _T:
        """Call `work` where it belongs; what is still queued when the caller leaves never runs.

        Args:
            num_bytes: of the body that it is about.
            work: what to call.
            arguments: for it.
            num_new_chars: that it tokenizes.

        Raises: BackendUnavailableError: too much waits already.
        """
        if num_bytes + TOKENIZING_WEIGHT * num_new_chars < self._from_bytes:
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
