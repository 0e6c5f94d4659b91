"""HTTP to one upstream: the only file that knows by which library. Connections are kept, and none is waited for."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager

import aiohttp
from yarl import URL

from gateway.upstream.headers import RawHeaders

_KEEP_ALIVE_SECONDS = 4.0
"""Below the 5 s after which uvicorn, and so vLLM, closes: a request on a connection that is just being closed fails."""
_MAX_HEADER_BYTES = 64_000
_MAX_ONE_WRITE_BYTES = 500_000
"""A larger body is written piece by piece."""
_NOT_OURS = ("accept", "accept-encoding", "content-type", "user-agent")
"""Headers that the library would add; a client's cross, and what it did not send the upstream does not get."""


class TransportError(Exception):
    """An upstream broke, maybe while it worked on a request."""


class ConnectError(TransportError):
    """An upstream cannot be reached, and has seen nothing."""


class UpstreamResponse:
    """An answer whose head is there; its body is still to be read, and closed.

    Attributes:
        status: of the answer.
        headers: by their names, in whatever case.
        raw_headers: as they came.
    """

    __slots__ = ("_response", "headers", "raw_headers", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self.raw_headers = response.raw_headers

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes, packed if it is.

        Raises: TransportError: it broke off.
        """
        with _named_failure():
            async for piece in self._response.content.iter_any():
                yield piece

    def close(self) -> None:
        """Let go of the connection: one whose answer was read to its end is kept, any other is cut."""
        self._response.close()


class UpstreamConnection:
    """All connections to one server. They belong to the event loop that sends first.

    Args:
        connect_seconds: for a connection to be made.
    """

    def __init__(self, *, connect_seconds: float) -> None:
        self._connect_seconds = connect_seconds
        self._session: aiohttp.ClientSession | None = None

    async def send(self, method: str, address: str, headers: RawHeaders, body: bytes) -> UpstreamResponse:
        """Send a request, and wait for the head of its answer.

        Raises: ConnectError: the server cannot be reached; TransportError: it broke.
        """
        session = self._session or self._open()
        with _named_failure():
            response = await session.request(
                method,
                URL(address, encoded=True),
                headers=[(name.decode(), value.decode(errors="surrogateescape")) for name, value in headers],
                data=(body if len(body) < _MAX_ONE_WRITE_BYTES else io.BytesIO(body)) or None,
                allow_redirects=False,
            )
        return UpstreamResponse(response)

    async def close(self) -> None:
        """Close them."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        # How long an answer may take is timed by who reads it.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_NOT_OURS,
            auto_decompress=False,
            trust_env=False,  # a proxy of the environment is for reaching the world
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
        )
        return self._session


@contextmanager
def _named_failure() -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise ConnectError(str(error) or type(error).__name__) from error
    except (aiohttp.ClientError, ConnectionError) as error:
        raise TransportError(str(error) or type(error).__name__) from error
