"""An OpenAI server that answers at once: as little HTTP as the two sides of the benchmark speak.

python -m benchmarks.overhead.mock     prints the port that it listens on.

A stream has as many chunks as `max_tokens` asks for. Its first comes at once, the others one a tick to each stream that
runs, as an engine's step has it, so that chunks arrive alone.
"""

from __future__ import annotations

import asyncio
import re
from typing import cast

import uvloop

TICK_SECONDS = 0.002
"""A reader that takes 100 µs a chunk keeps up with 16 streams."""

_NUM_TOKENS = re.compile(rb'"max_tokens": ?(\d+)')
_LENGTH = re.compile(rb"\r\ncontent-length: ?(\d+)", re.IGNORECASE)
_NAME = b'{"id":"chatcmpl-mock","created":1,"model":"mock","object":"chat.completion'
_USAGE = (
    b'"usage":{"prompt_tokens":1060,"completion_tokens":16,"total_tokens":1076,'
    b'"prompt_tokens_details":{"cached_tokens":992}}'
)
_TEXT = b" fox" * 16
_WHOLE = (
    _NAME + b'","choices":[{"index":0,"message":{"role":"assistant","content":"%b"},"finish_reason":"stop"}],%b}'
) % (_TEXT, _USAGE)
_EVENT = b"data: " + _NAME + b'.chunk","choices":[{"index":0,"delta":%b,"finish_reason":%b}]%b}\n\n'


def _http_chunk(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


def _response(content_type: bytes, framing: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%b\r\n\r\n" % (content_type, framing)


def _json(body: bytes) -> bytes:
    return _response(b"application/json", b"content-length: %d" % len(body)) + body


ANSWER = _json(_WHOLE)
MODELS = _json(b'{"object":"list","data":[{"id":"mock","object":"model"}]}')
CHUNK = _http_chunk(_EVENT % (b'{"content":" fox"}', b"null", b""))
START = _response(b"text/event-stream", b"transfer-encoding: chunked") + CHUNK
END = (
    _http_chunk(_EVENT % (b"{}", b'"length"', b""))
    + _http_chunk(b"data: " + _NAME + b'.chunk","choices":[],' + _USAGE + b"}\n\n")
    + _http_chunk(b"data: [DONE]\n\n")
    + b"0\r\n\r\n"
)


class Streams:
    """Streams that run: one chunk to each at every tick."""

    def __init__(self) -> None:
        self._left: dict[asyncio.Transport, int] = {}

    def start(self, transport: asyncio.Transport, num_chunks: int) -> None:
        """Send the first chunk; the others follow."""
        transport.write(START)
        self._left[transport] = num_chunks - 1

    def drop(self, transport: asyncio.Transport) -> None:
        """Forget a client that left."""
        self._left.pop(transport, None)

    async def run(self) -> None:
        """Tick."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(loop.time(), due + TICK_SECONDS)
            await asyncio.sleep(due - loop.time())
            for transport, left in list(self._left.items()):
                transport.write(CHUNK if left else END)
                if left:
                    self._left[transport] = left - 1
                else:
                    del self._left[transport]


class Connection(asyncio.Protocol):
    """One client: a request, then its answer, then the next one."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- the protocol's signature
        """End."""
        self._streams.drop(self._transport)

    def data_received(self, data: bytes) -> None:
        """Answer, once the whole request is there."""
        self._received += data
        head, border, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not border or len(body) < (int(length[1]) if length else 0):
            return
        self._received = b""
        if head.startswith(b"GET"):
            self._transport.write(MODELS)
        elif b'"stream":true' in body:
            num_tokens = _NUM_TOKENS.search(body)
            assert num_tokens is not None
            self._streams.start(self._transport, int(num_tokens[1]))
        else:
            self._transport.write(ANSWER)


async def serve() -> None:
    """Listen on a free port until the process ends."""
    streams = Streams()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(streams), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await streams.run()


if __name__ == "__main__":
    uvloop.run(serve())
