"""HTTP/1.1 as uvicorn speaks it, but for two things.

The head of an answer goes out with its body: uvicorn writes them one by one, and each write is a system call, a packet, and
a client that is woken.

And an upgrade that nobody offers is ignored.

Source: RFC 9110, 7.8: a server may ignore an Upgrade field and answer in HTTP/1.1. curl --http2 and Java's client send one
with every first request.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD = b"HTTP/1."
_HOP_HEADERS = frozenset({b"connection", b"upgrade", b"http2-settings"})


class JoinedWrites:
    """A transport that holds the head of an answer for its body, for one turn of the event loop; all else is its own."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""

    def write(self, data: bytes) -> None:
        """Write at once; a head with what comes next, or when the loop turns."""
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held + data)
        elif data.startswith(_HEAD):
            self._held = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close, once all is written."""
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)


class HttpProtocol(HttpToolsProtocol):
    """Reads a request that asks for an upgrade a second time, without the fields that ask for it.

    The parser takes what follows such a head for the other protocol. uvicorn would drop it, the request's body with it.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection."""
        super().connection_made(cast("asyncio.Transport", JoinedWrites(transport, self.loop)))

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client."""
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("Invalid HTTP request received.")

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if not self._should_upgrade():
                    return  # CONNECT, which is answered by the application like any other method
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
            else:
                return

    def _should_upgrade(self) -> bool:
        """Tell the callbacks to leave this head alone, for it comes again."""
        return self.scope["method"] != "CONNECT"

    def _head_without_upgrade(self) -> bytes:
        closes = not self.parser.should_keep_alive()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        lines += [b"%b: %b" % header for header in self.headers if header[0] not in _HOP_HEADERS]
        if closes:
            lines.append(b"connection: close")
        return b"\r\n".join([*lines, b"", b""])
