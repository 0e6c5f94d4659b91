"""What is around every answer, whoever gives it: who asks and how much they may, what came, and what is remembered of it.

Knows no engine, no upstream and no form of an answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from gateway.auth import Authenticator, Identity
from gateway.disconnect import ClientDisconnectedError, read_body
from gateway.errors import ContextLengthError, problem_of
from gateway.limits.limiter import Limiter, Ticket
from gateway.metrics import GatewayMetrics
from gateway.request_entry import CLIENT_GONE, RequestEntry
from gateway.storage.request_log import RequestLog
from gateway.threads import PromptThreads


class Asked(Protocol):
    """What is read here of a checked body, whatever its endpoint."""

    @property
    def model(self) -> str:
        """The one that is asked for."""
        ...

    @property
    def stream(self) -> bool:
        """Whether the answer comes in pieces."""
        ...


AskedT = TypeVar("AskedT", bound=Asked)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that was let in."""

    entry: RequestEntry
    """For the log; filled in while it is answered."""
    identity: Identity
    ticket: Ticket
    """Closed when the answer is over, if not earlier."""
    arrived_at: float
    """By the reception's clock."""


@dataclass(frozen=True, slots=True)
class Reception:
    """Lets requests in, and sees them out."""

    authenticator: Authenticator
    limiter: Limiter
    metrics: GatewayMetrics
    threads: PromptThreads
    log: RequestLog | None = None
    """None: nothing is remembered."""
    clock: Callable[[], float] = time.monotonic

    @contextmanager
    def admit(self, scope: Scope, route: str, logger: logging.Logger) -> Iterator[Arrival]:
        """Let a request in; what is done inside answers it. A client that goes away is no error here.

        Raises: GatewayError: nobody may ask so, or so much; whatever is raised inside is noted, and raised again.
        """
        arrived_at = self.clock()
        identity = self.authenticator.identify(Headers(scope=scope))
        request_id: str = scope["state"]["request_id"]
        entry = RequestEntry(request_id, route, identity.tenant, identity.key_id, created_at=time.time())
        try:
            with self.limiter.admit(identity) as ticket:
                yield Arrival(entry, identity, ticket, arrived_at)
        except ClientDisconnectedError:
            if entry.status == CLIENT_GONE:  # else it has all that it asked for
                self.metrics.aborted_requests.inc()
                logger.info("client gone")
        except Exception as error:
            entry.fail(problem_of(error))
            if isinstance(error, ContextLengthError):
                self.metrics.too_long_requests.inc()
            raise
        finally:
            entry.total_seconds = self.clock() - arrived_at
            if self.log is not None:
                self.log.record(entry)

    async def read(self, arrival: Arrival, receive: Receive, parse: Callable[[bytes], AskedT]) -> AskedT:
        """Read a body and check it, a large one in a thread.

        Raises: InvalidRequestError: what is wrong first; ClientDisconnectedError: it never came whole.
        """
        body = await read_body(receive)
        request = await self.threads.run(len(body), parse, body)
        entry = arrival.entry
        entry.model, entry.is_stream = request.model, request.stream
        if self.log is not None and self.log.keeps_content:
            entry.request_body = body.decode()
        return request
