"""The upstreams: which one a conversation goes to, which of them answer, and what is tried where one does not.

Knows nothing of what is sent. A request is tried again only where no upstream can have begun to answer it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import SecretStr

from gateway.errors import UpstreamFailedError, UpstreamUnreachableError
from gateway.upstream.connection import ConnectError, TransportError, UpstreamConnection, UpstreamResponse
from gateway.upstream.headers import RawHeaders
from gateway.upstream.limits import Limits
from gateway.upstream.options import UpstreamOptions

logger = logging.getLogger(__name__)

PROBE_SECONDS = 5.0
"""Between two looks at which upstreams answer."""
MAX_LOAD_RATIO = 1.5
"""Of the mean number of requests that an upstream works on: with so many, others are asked first …"""
FREE_REQUESTS = 4
"""… but never with so few."""
_PROBE_TIMEOUT_SECONDS = 3.0
_BUSY = 503
_REFUSED = frozenset({401, 403})
_REDIRECTS = range(300, 400)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long an upstream may take, in seconds."""

    connect: float = 5.0
    first_byte: float = 600.0
    """From the end of the request to the first byte of the answer's body, which in one piece comes at its end."""
    idle: float = 120.0
    """Between bytes of an answer."""


class Upstream:
    """One server.

    Attributes:
        name: its base URL.
        own_headers: sent with each request.
        is_up: whether it answered last.
        num_in_flight: requests that it works on.
    """

    def __init__(self, options: UpstreamOptions, key: SecretStr | None, timeouts: Timeouts) -> None:
        self.name = options.url
        self.own_headers: RawHeaders = [
            (name.encode(), value.get_secret_value().encode()) for name, value in options.headers.items()
        ]
        key = options.key or key
        if key is not None and "authorization" not in options.headers:
            self.own_headers.append((b"authorization", b"Bearer " + key.get_secret_value().encode()))
        self.is_up = False
        self.num_in_flight = 0
        self._connection = UpstreamConnection(connect_seconds=timeouts.connect)

    def url(self, path: str) -> str:
        """Give the address of a path of the gateway's: those outside of `/v1` are outside of the upstream's, too."""
        if path.startswith("/v1/"):
            return self.name + path.removeprefix("/v1")
        return self.name.removesuffix("/v1") + path

    async def send(self, method: str, path: str, headers: RawHeaders, body: bytes) -> UpstreamResponse:
        """Send a request; the answer's body is still to be read, and closed.

        Raises: ConnectError: it cannot be reached; TransportError: it broke.
        """
        return await self._connection.send(method, self.url(path), headers, body)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count a request while it is with this one."""
        self.num_in_flight += 1
        try:
            yield
        finally:
            self.num_in_flight -= 1

    async def probe(self) -> None:
        """Find out whether it answers. One that is loading (503) or refuses our key could serve nobody."""
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_SECONDS):
                response = await self.send("GET", "/v1/models", self.own_headers, b"")
                response.close()
                is_up = response.status < 500 and response.status not in _REFUSED
                reason = f"it answers {response.status}"
        except (TransportError, TimeoutError) as error:
            is_up, reason = False, str(error) or type(error).__name__
        self.note(is_up=is_up, reason=reason)

    def note(self, *, is_up: bool, reason: str) -> None:
        """Note whether it answers, and log where that is new."""
        if is_up != self.is_up:
            logger.log(logging.INFO if is_up else logging.WARNING, "upstream %s: %s", self.name, reason)
        self.is_up = is_up

    async def close(self) -> None:
        """Close its connections."""
        await self._connection.close()


class Sent(NamedTuple):
    """A request that an upstream took."""

    upstream: Upstream
    response: UpstreamResponse


class UpstreamPool:
    """Several servers of the same models.

    Attributes:
        upstreams: in the order they were given.
        timeouts: for who reads their answers.
        limits: under which they are read.
        num_retries: requests that went to a second one.
    """

    def __init__(
        self,
        options: Sequence[UpstreamOptions],
        *,
        key: SecretStr | None = None,
        timeouts: Timeouts = Timeouts(),
        probe_seconds: float = PROBE_SECONDS,
    ) -> None:
        self.upstreams = tuple(Upstream(entry, key, timeouts) for entry in options)
        self.timeouts = timeouts
        self.limits = Limits()
        self.num_retries = 0
        self._probe_seconds = probe_seconds
        self._probing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Look once at who answers, then again and again."""
        await self._probe()
        self._probing = asyncio.create_task(self._probe_on())

    async def stop(self) -> None:
        """End the answers that run."""
        self.limits.stop()

    async def close(self) -> None:
        """End everything."""
        await self.stop()
        if self._probing is not None:
            self._probing.cancel()
            with suppress(asyncio.CancelledError):
                await self._probing
        for upstream in self.upstreams:
            await upstream.close()

    def ready(self) -> bool:
        """Whether any upstream answers."""
        return any(upstream.is_up for upstream in self.upstreams)

    def state(self) -> str:
        """Say the same in words."""
        return "ready" if self.ready() else "no upstream answers"

    def order(self, key: bytes) -> list[Upstream]:
        """Give the upstreams in the order in which to try them for what has this key.

        The same key gives the same first one as long as it answers and has not far more to do than the others; where one
        is added or falls out, only its own keys move. Source: Thaler and Ravishankar, rendezvous hashing, 1998; Mirrokni
        et al., consistent hashing with bounded loads, 2016.
        """
        if len(self.upstreams) == 1:
            return list(self.upstreams)
        digest = hashlib.blake2b(key, digest_size=32).digest()
        num_up = sum(upstream.is_up for upstream in self.upstreams) or 1
        bound = FREE_REQUESTS + MAX_LOAD_RATIO * sum(upstream.num_in_flight for upstream in self.upstreams) / num_up

        def place(upstream: Upstream) -> tuple[bool, bool, bytes]:
            return not upstream.is_up, upstream.num_in_flight > bound, _weight(digest, upstream.name)

        return sorted(self.upstreams, key=place)

    async def send(
        self, order: Sequence[Upstream], method: str, path: str, headers: Callable[[Upstream], RawHeaders], body: bytes
    ) -> Sent:
        """Send a request to the first upstream that takes it.

        Raises:
            UpstreamUnreachableError: none can be reached.
            TransportError: one broke when it may have begun to work on it.
        """
        busy: Sent | None = None  # the last one that is: if no other takes it, that is the answer
        try:
            for place, upstream in enumerate(order):
                if place:
                    self.num_retries += 1
                try:
                    response = await upstream.send(method, path, headers(upstream), body)
                except ConnectError as error:
                    upstream.note(is_up=False, reason=str(error))
                    continue
                if response.status != _BUSY:
                    if response.status < 500:
                        upstream.note(is_up=True, reason="it answers")
                    return Sent(upstream, response)
                if busy is not None:
                    busy.response.close()
                busy = Sent(upstream, response)
            if busy is None:
                raise UpstreamUnreachableError("no upstream could be reached; try again later")
            kept, busy = busy, None
            return kept
        finally:
            if busy is not None:
                busy.response.close()

    async def _probe(self) -> None:
        await asyncio.gather(*(upstream.probe() for upstream in self.upstreams))

    async def _probe_on(self) -> None:
        while True:
            await asyncio.sleep(self._probe_seconds)
            await self._probe()


def check_no_redirect(status: int) -> None:
    """Refuse to pass a redirect on: an SDK would follow it, and send the key of its client there.

    Raises: UpstreamFailedError: the status is one.
    """
    if status in _REDIRECTS:
        raise UpstreamFailedError(f"the upstream answered {status}, a redirect; its URL may be wrong")


def _weight(digest: bytes, name: str) -> bytes:
    return hashlib.blake2b(name.encode(), key=digest, digest_size=8).digest()
