"""Server-sent events over ASGI: frames of ready bytes, and comments as a sign of life while there is nothing to say."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Send

Headers = list[tuple[bytes, bytes]]

DONE = b"data: [DONE]\n\n"

COMMENT_PING = b": ping\n\n"
_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the events
]


class EventStream:
    """One event-stream response. Frames come complete, each with its blank line."""

    def __init__(self, send: Send, clock: Callable[[], float]) -> None:
        self._send = send
        self._clock = clock
        self._is_open = False
        self._is_sending = False
        self._last_sent = 0.0
        self._ping = COMMENT_PING

    async def start(self, headers: Headers, *, ping: bytes = COMMENT_PING) -> None:
        """Send the head of the response; `ping` is the sign of life from here on."""
        self._ping = ping
        self._last_sent = self._clock()
        self._is_open = True
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS + headers})

    async def write(self, frames: bytes) -> None:
        """Send frames."""
        self._last_sent = self._clock()
        self._is_sending = True
        await self._send({"type": "http.response.body", "body": frames, "more_body": True})
        self._is_sending = False

    async def close(self, frames: bytes) -> None:
        """Send the last frames."""
        self._is_open = False
        await self._send({"type": "http.response.body", "body": frames, "more_body": False})

    async def ping(self, idle_seconds: float) -> None:
        """Send a sign of life if nothing was sent for that long, and nothing waits to be."""
        if self._is_open and not self._is_sending and self._clock() - self._last_sent >= idle_seconds:
            await self.write(self._ping)


def data(body: bytes) -> bytes:
    """Frame one line of data."""
    return b"data: " + body + b"\n\n"
