"""One value for many listeners, again and again: computed by one task, and only while somebody listens.

Knows neither what the value is nor how it is sent. For one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable

from gateway.errors import TooManyListenersError

logger = logging.getLogger(__name__)

TICK_SECONDS = 2.0
MAX_LISTENERS = 32


class Live:
    """Hands out the newest value; a listener that is slow misses some, and holds up nobody.

    Args:
        compute: makes the value.
        tick_seconds: between two of them.
        max_listeners: at the same time.
    """

    def __init__(
        self,
        compute: Callable[[], Awaitable[bytes]],
        *,
        tick_seconds: float = TICK_SECONDS,
        max_listeners: int = MAX_LISTENERS,
    ) -> None:
        self._compute = compute
        self._tick_seconds = tick_seconds
        self._max_listeners = max_listeners
        self._num_listeners = 0
        self._newest: bytes | None = None
        self._number = 0
        self._has_news = asyncio.Event()  # another one for each value
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    async def listen(self) -> AsyncGenerator[bytes, None]:
        """Yield the newest value at once, then each one that follows, until `stop`. Close it to leave.

        Raises: TooManyListenersError: before the first value.
        """
        if self._num_listeners >= self._max_listeners:
            raise TooManyListenersError(
                f"{self._num_listeners} listen already, wanted at most {self._max_listeners}; close another page, or poll"
            )
        self._num_listeners += 1
        try:
            if self._task is None:
                self._task = asyncio.create_task(self._run())
            seen = 0
            while not self._is_stopped:
                if self._newest is None or seen == self._number:
                    await self._has_news.wait()
                else:
                    seen = self._number
                    yield self._newest
        finally:
            self._num_listeners -= 1
            if not self._num_listeners:
                self._rest()

    def stop(self) -> None:
        """End all listening, and let nobody begin."""
        self._is_stopped = True
        self._has_news.set()

    async def _run(self) -> None:
        while True:
            try:
                self._newest = await self._compute()
                self._number += 1
                self._has_news.set()
                self._has_news = asyncio.Event()
            except Exception:  # whoever listens would hear nothing more
                logger.exception("a live value could not be computed")
            await asyncio.sleep(self._tick_seconds)

    def _rest(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = self._newest = None
