"""How long an answer may take, piece by piece, and that all of them end when the gateway does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from gateway.errors import UpstreamFailedError, UpstreamTimeoutError


class Limit:
    """Of one answer."""

    def __init__(self, limits: Limits, timeout: asyncio.Timeout) -> None:
        self._limits = limits
        self._timeout = timeout

    def allow(self, seconds: float | None) -> None:
        """Let so much pass from now on; None: as long as it takes."""
        if self._limits.is_stopping:
            return
        self._timeout.reschedule(None if seconds is None else asyncio.get_running_loop().time() + seconds)


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
        timeout = asyncio.timeout(0 if self.is_stopping else seconds)
        try:
            async with timeout:
                self._running.add(timeout)
                try:
                    yield Limit(self, timeout)
                finally:
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
