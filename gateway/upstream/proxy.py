"""One endpoint in front of upstreams: a plain ASGI application that passes bytes on.

An answer in one piece is read whole before its first byte is sent, so whatever goes wrong has a status. One in pieces is
passed on as they come; what goes wrong then is an event in the stream. A client that goes away, at any moment, ends the
request to the upstream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from starlette.types import Receive, Scope, Send

from gateway.disconnect import run_until_disconnect
from gateway.error_shapes import error_event
from gateway.errors import GatewayError, UpstreamFailedError, problem_of
from gateway.limits.headers import Headers
from gateway.reception import Arrival, Reception
from gateway.request_entry import RequestEntry
from gateway.upstream.books import Books, main_reason
from gateway.upstream.chat import Outgoing, UpstreamIngress, most_tokens, parse_body
from gateway.upstream.connection import TransportError, UpstreamResponse
from gateway.upstream.endpoints import UpstreamEndpoint
from gateway.upstream.foresight import Foreseen
from gateway.upstream.headers import RawHeaders, forwarded, returned
from gateway.upstream.limits import Limit
from gateway.upstream.metrics import UpstreamMetrics
from gateway.upstream.pool import Sent, Upstream, UpstreamPool, check_no_redirect
from gateway.upstream.usage import AnswerReader
from gateway.upstream.whole_events import WholeEvents

logger = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 64_000_000
"""Of an answer in one piece, which is held in memory."""
_REST_SECONDS = 0.1
"""For an upstream to end its answer after the last event."""
_WATCH_SECONDS = 3600.0
"""Nothing is said to a client while it waits: all bytes are the upstream's."""


@dataclass(frozen=True, slots=True)
class ProxyServices:
    """What passing a chat on takes."""

    reception: Reception
    pool: UpstreamPool
    ingress: UpstreamIngress
    metrics: UpstreamMetrics
    books: Books | None = None
    """None: nothing is predicted."""


@dataclass(slots=True)
class _Task:
    """One request on its way."""

    arrival: Arrival
    num_reserved: int
    """Tokens; they count where the upstream does not tell how many it took."""
    outgoing: Outgoing
    headers: RawHeaders
    """The client's."""
    send: Send
    events: WholeEvents = field(default_factory=WholeEvents)
    """Of an answer that is streamed."""
    foreseen: Foreseen | None = None
    """None: nothing is predicted of it."""
    is_started: bool = False
    """Whether the head of the answer was sent."""

    @property
    def entry(self) -> RequestEntry:
        """For the log."""
        return self.arrival.entry

    def settle(self, reader: AnswerReader) -> None:
        """Settle with the limits, before the last bytes go out: whoever has them may ask again at once."""
        told = reader.num_prompt_tokens
        self.arrival.ticket.settle(self.num_reserved if told is None else told + (reader.num_output_tokens or 0))
        self.arrival.ticket.close()


class Relay:
    """The application."""

    def __init__(self, services: ProxyServices, endpoint: UpstreamEndpoint) -> None:
        self._services = services
        self._endpoint = endpoint
        self._parse = partial(parse_body, needs_model=endpoint.needs_model)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        with self._services.reception.admit(scope, self._endpoint.route, logger) as arrival:
            task = await self._read(arrival, scope, receive, send)
            await run_until_disconnect(self._answer(task), receive, idle_seconds=_WATCH_SECONDS, on_idle=_say_nothing)

    async def _read(self, arrival: Arrival, scope: Scope, receive: Receive, send: Send) -> _Task:
        services, identity = self._services, arrival.identity
        chat = await services.reception.read(arrival, receive, self._parse)
        if chat.model or identity.models is not None:
            identity.check_model(chat.model)
        num_reserved = most_tokens(chat) if self._endpoint.generates else 0
        arrival.ticket.reserve(num_reserved)
        outgoing = await services.ingress.prepare(chat, endpoint=self._endpoint, identity=identity)
        arrival.entry.rules = outgoing.rules
        return _Task(arrival, num_reserved, outgoing, scope["headers"], send)

    async def _answer(self, task: _Task) -> None:
        pool = self._services.pool
        is_kept = task.entry.request_body is not None or task.outgoing.next_turn is not None
        reader = AnswerReader(keeps_message=is_kept)
        try:
            async with pool.limits.timed(pool.timeouts.first_byte) as limit, self._sent(task) as sent:
                is_stream = sent.response.headers.get("content-type", "").startswith("text/event-stream")
                pass_on = self._stream if is_stream else self._respond
                await pass_on(task, sent.response, reader, limit)
        except GatewayError as error:
            if not task.is_started:
                raise
            await self._end_stream(task, error)
        finally:
            if task.is_started:
                task.settle(reader)
            _note_answer(task.entry, reader)

    @asynccontextmanager
    async def _sent(self, task: _Task) -> AsyncIterator[Sent]:
        """Send the request on; close the answer when it was read, or is no longer wanted.

        Raises: UpstreamUnreachableError: none takes it; UpstreamFailedError: one broke.
        """
        services = self._services

        def headers(upstream: Upstream) -> RawHeaders:
            return forwarded(task.headers, task.entry.request_id, upstream.own_headers)

        order = services.pool.order(task.outgoing.affinity)
        books = services.books if self._endpoint.generates else None
        # The prompt is tokenized while the upstream already works.
        looking = None if books is None else books.look(task.arrival, task.outgoing, order[0].name)
        task.entry.prepare_seconds = services.reception.clock() - task.arrival.arrived_at
        try:
            with order[0].working():
                sent = await services.pool.send(order, "POST", self._endpoint.route, headers, task.outgoing.body)
            services.metrics.count_answer(sent.upstream.name, sent.response.status)
            try:
                check_no_redirect(sent.response.status)
                with sent.upstream.working():
                    foreseen = None if looking is None else await looking
                    task.foreseen = foreseen and foreseen.at(sent.upstream.name)
                    yield sent
            finally:
                sent.response.close()
        except TransportError as error:
            logger.warning("an upstream broke: %s", error)
            raise UpstreamFailedError("the upstream broke before its answer was complete") from error
        finally:
            if looking is not None:
                looking.cancel()

    async def _respond(self, task: _Task, response: UpstreamResponse, reader: AnswerReader, limit: Limit) -> None:
        idle = self._services.pool.timeouts.idle
        pieces, num_bytes = [], 0
        async for piece in response.pieces():
            limit.allow(idle)
            pieces.append(piece)
            num_bytes += len(piece)
            if num_bytes > MAX_ANSWER_BYTES:
                raise UpstreamFailedError(f"the upstream's answer is longer than {MAX_ANSWER_BYTES} bytes")
        limit.allow(None)
        body = b"".join(pieces)
        if "content-encoding" not in response.headers:
            reader.read_body(body)
        self._note_status(task, response.status, reader)
        await self._start(task, response, reader, [(b"content-length", str(len(body)).encode())])
        await task.send({"type": "http.response.body", "body": body})

    async def _stream(self, task: _Task, response: UpstreamResponse, reader: AnswerReader, limit: Limit) -> None:
        services, send, events = self._services, task.send, task.events
        idle, is_readable = services.pool.timeouts.idle, "content-encoding" not in response.headers
        pieces, last = response.pieces(), b""
        async for piece in pieces:
            limit.allow(None)  # a slow client is no slow upstream
            if not task.is_started:
                task.entry.first_token_seconds = services.reception.clock() - task.arrival.arrived_at
                await self._start(task, response, None)
            if is_readable:
                reader.feed(piece)
                if reader.is_done:
                    last = piece + await _rest(pieces)
                    break
                piece = events.feed(piece)
            if piece:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            limit.allow(idle)
        limit.allow(None)
        if not task.is_started:
            await self._start(task, response, None)
        self._note_status(task, response.status, reader)
        await send({"type": "http.response.body", "body": events.end(last)})

    async def _start(
        self, task: _Task, response: UpstreamResponse, reader: AnswerReader | None, more: Headers | None = None
    ) -> None:
        """Send the head of an answer; without a reader nothing of the answer is known yet."""
        task.is_started = True
        own = task.arrival.ticket.headers()
        names = {name for name, _ in own}
        headers = [
            *(header for header in returned(response.raw_headers) if header[0] not in names),
            *own,
            (b"x-prefixgate-cache", _cache_header(task, reader)),
            *(more or ()),
        ]
        await task.send({"type": "http.response.start", "status": response.status, "headers": headers})

    async def _end_stream(self, task: _Task, error: GatewayError) -> None:
        logger.warning("failed while streaming: %s", error)
        problem = problem_of(error)
        task.entry.fail(problem)
        border = b"" if task.events.is_at_border else b"\n\n"
        event = error_event(problem, self._endpoint.route)
        await task.send({"type": "http.response.body", "body": border + event})

    def _note_status(self, task: _Task, status: int, reader: AnswerReader) -> None:
        """Note that the answer is complete, before its last bytes go out: the client may go away, or ask again."""
        task.entry.status = status
        if status >= 400:
            task.entry.error = "upstream_error"
            task.arrival.ticket.close()
            return
        task.settle(reader)
        if self._endpoint.generates:
            self._services.metrics.count_tokens(reader, task.entry.first_token_seconds)
            if self._services.books is not None:
                self._services.books.note(task.arrival, task.outgoing, task.foreseen, reader)
        if task.outgoing.next_turn is not None and reader.finish_reason is not None:
            task.outgoing.next_turn.remember(reader.turn.message())


def _note_answer(entry: RequestEntry, reader: AnswerReader) -> None:
    entry.completion_id = reader.completion_id
    entry.finish_reason = reader.finish_reason
    entry.num_prompt_tokens = reader.num_prompt_tokens
    entry.num_cached_tokens = reader.num_cached_tokens
    entry.num_output_tokens = reader.num_output_tokens
    if entry.request_body is not None:
        entry.answer_text = reader.turn.text


def _cache_header(task: _Task, reader: AnswerReader | None) -> bytes:
    """Print `x-prefixgate-cache`: what is known before the head of the answer leaves."""
    reported = None if reader is None else reader.num_cached_tokens
    facts: dict[str, object] = {}
    if reported is not None:
        facts["cached"] = reported
    if task.foreseen is not None:
        facts["predicted"] = task.foreseen.prediction.num_tokens
    if reader is not None and reader.num_prompt_tokens is not None:
        facts["prompt"] = reader.num_prompt_tokens
    if task.foreseen is not None:
        facts["reason"] = main_reason(task.foreseen, reported)
    facts["rules"] = ",".join(task.outgoing.rules) or "none"
    return "; ".join(f"{name}={value}" for name, value in facts.items()).encode()


async def _rest(pieces: AsyncIterator[bytes]) -> bytes:
    """Read what comes right behind the last event: nearly always nothing, and then the connection can be used again."""
    rest = []
    with suppress(TimeoutError, TransportError):
        async with asyncio.timeout(_REST_SECONDS):
            rest += [piece async for piece in pieces]
    return b"".join(rest)


async def _say_nothing() -> None:
    pass
