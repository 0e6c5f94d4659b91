"""HTTP/1.1 as uvicorn speaks it, but for one thing: an upgrade that nobody offers is ignored.

Source: RFC 9110, 7.8: a server may ignore an Upgrade field and answer in HTTP/1.1. curl --http2 and Java's client send one
with every first request.
"""

from __future__ import annotations

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HOP_HEADERS = frozenset({b"connection", b"upgrade", b"http2-settings"})


class HttpProtocol(HttpToolsProtocol):
    """Reads a request that asks for an upgrade a second time, without the fields that ask for it.

    The parser takes what follows such a head for the other protocol. uvicorn would drop it, the request's body with it.
    """

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
