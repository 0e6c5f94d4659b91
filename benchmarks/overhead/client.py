"""A client that costs next to nothing: bytes that were printed before, over connections that stay open."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

_LENGTH = re.compile(rb"\r\ncontent-length: ?(\d+)", re.IGNORECASE)
_LAST_CHUNK = b"\r\n0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a load took."""

    latencies: Sequence[float]
    """Seconds, one a request."""
    wall: float
    """Seconds for all."""

    @property
    def requests_per_second(self) -> float:
        """Of all connections together."""
        return len(self.latencies) / self.wall


class Connection(asyncio.Protocol):
    """One connection: a request, its whole answer, the next request."""

    def __init__(self) -> None:
        self._received: list[bytes] = []
        self._num_bytes = 0
        self._wanted: int | None = None
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail whoever waits."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the server hung up"))

    async def ask(self, request: bytes) -> bytes:
        """Send a request, give the bytes of the answer.

        Raises: ConnectionError: the server hung up; RuntimeError: the status is not 200.
        """
        self._received, self._num_bytes, self._wanted = [], 0, None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        answer = await self._answer
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"got the answer {answer[:500]!r}, wanted a status of 200")
        return answer

    def data_received(self, data: bytes) -> None:
        """Take bytes, and look whether these are the last ones."""
        self._received.append(data)
        self._num_bytes += len(data)
        if self._wanted is None:
            so_far = b"".join(self._received)
            end = so_far.find(b"\r\n\r\n")
            if end < 0:
                return
            length = _LENGTH.search(so_far[: end + 2])
            self._wanted = end + 4 + int(length[1]) if length else -1
        if self._num_bytes == self._wanted or (self._wanted < 0 and self._ends_with_last_chunk()):
            assert self._answer is not None
            self._answer.set_result(b"".join(self._received))

    def _ends_with_last_chunk(self) -> bool:
        return b"".join(self._received[-len(_LAST_CHUNK) :]).endswith(_LAST_CHUNK)

    def close(self) -> None:
        """Hang up."""
        self._transport.close()


async def load(port: int, requests: Sequence[bytes], *, concurrency: int, num_events: int = 0) -> Outcome:
    """Send all requests, so many at a time.

    Args:
        port: of this machine.
        requests: each with its head.
        concurrency: connections, each of which asks again as soon as it has its answer.
        num_events: that each answer must have at least, where it is a stream.

    Raises: RuntimeError: an answer is not what was asked for.
    """
    loop = asyncio.get_running_loop()
    connections = [(await loop.create_connection(Connection, "127.0.0.1", port))[1] for _ in range(concurrency)]
    latencies: list[float] = []
    waiting = iter(requests)
    try:
        start = time.perf_counter()
        await asyncio.gather(*(_ask_on(connection, waiting, latencies, num_events) for connection in connections))
        return Outcome(latencies, time.perf_counter() - start)
    finally:
        for connection in connections:
            connection.close()


async def _ask_on(connection: Connection, waiting: Iterator[bytes], latencies: list[float], num_events: int) -> None:
    for request in waiting:
        start = time.perf_counter()
        answer = await connection.ask(request)
        latencies.append(time.perf_counter() - start)
        if num_events and answer.count(b"data: ") < num_events:
            raise RuntimeError(f"got {answer.count(b'data: ')} events, wanted at least {num_events}: {answer[-300:]!r}")
