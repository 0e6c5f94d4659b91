"""How long an answer may take, piece by piece, and that all of them end when the gateway does."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from gateway.errors import UpstreamFailedError, UpstreamTimeoutError


class Limit:
    """Of one answer. A timer that is set anew for every piece would cost more than the piece; this one looks when it ends."""

    def __init__(self, limits: Limits, timeout: asyncio.Timeout) -> None:
        self._limits = limits
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._ends_at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def allow(self, seconds: float | None) -> None:
        """Let so much pass from now on; None: as long as it takes."""
        if self._limits.is_stopping:
            return
        self._ends_at = math.inf if seconds is None else self._loop.time() + seconds
        if self._timer is not None and self._ends_at < self._timer.when():
            self.cancel()
        if self._timer is None and seconds is not None:
            self._timer = self._loop.call_at(self._ends_at, self._look)

    def cancel(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._ends_at <= self._loop.time():
            self._timeout.reschedule(self._ends_at)
        elif self._ends_at < math.inf:
            self._timer = self._loop.call_at(self._ends_at, self._look)


class Limits:
    """Of all answers of a gateway.

    Attributes:
        is_stopping: whether their time is over.
    """

    def __init__(self) -> None:
        self.is_stopping = False
        self._running: set[asyncio.Timeout] = set()

    @asynccontextmanager
    async def timed(self, seconds: float) -> AsyncIterator[Limit]:
        """Limit what is done inside.

        Raises: UpstreamTimeoutError: it took longer than was allowed; UpstreamFailedError: the gateway ends.
        """
        timeout = asyncio.timeout(0 if self.is_stopping else None)
        limit = Limit(self, timeout)
        try:
            async with timeout:
                self._running.add(timeout)
                limit.allow(seconds)
                try:
                    yield limit
                finally:
                    limit.cancel()
                    self._running.discard(timeout)
        except TimeoutError as error:
            if not timeout.expired():
                raise
            if self.is_stopping:
                raise UpstreamFailedError("the gateway ends; ask again") from error
            raise UpstreamTimeoutError("the upstream took too long to answer") from error

    def stop(self) -> None:
        """Let the time of all run out."""
        self.is_stopping = True
        for timeout in self._running:
            with suppress(RuntimeError):  # it runs out just now
                timeout.reschedule(0)
