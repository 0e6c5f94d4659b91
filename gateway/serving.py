"""From the bytes of a body to the bytes of an answer, for every endpoint that generates: a plain ASGI application.

An endpoint brings a parser and a wire; all else is here, once. Errors before the first byte are raised and become a
response elsewhere; later ones are an event in the stream. A client that goes away, at any moment, cancels the work, and
that aborts the generation.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from starlette.types import Receive, Scope, Send

from gateway.accounting.accounting import Accounting, Receipt
from gateway.answer import Answer
from gateway.answer_pieces import AnswerEnd
from gateway.answers import Answers, Gathering
from gateway.auth import Authenticator, Identity
from gateway.backends.base import Admission, Backend, BackendError, ModelInfo
from gateway.disconnect import run_until_disconnect
from gateway.errors import GatewayError, ModelNotFoundError, problem_of, shown
from gateway.explain.diagnostics import Diagnostics
from gateway.explain.records import PromptRecord
from gateway.explain.request import DiagnosticsRequest
from gateway.ids import RandomIds
from gateway.ingress import Ingress
from gateway.joined import generate_all
from gateway.limits.limiter import Limiter, Ticket
from gateway.metrics import GatewayMetrics
from gateway.prepared import PreparedPrompt
from gateway.prompt_logprobs import scored_prompts
from gateway.recent import RecentRequests
from gateway.reception import Arrival, Asked, Reception
from gateway.request_entry import RequestEntry
from gateway.retention_hints import RetentionHints
from gateway.sse import EventStream
from gateway.storage.request_log import RequestLog
from gateway.threads import PromptThreads
from gateway.tokenizer import Tokenizer
from gateway.wire import AnswerHead, Wire, cache_header

PING_SECONDS = 15.0


class Parsed(Asked, Protocol):
    """What is read here of a checked body, whatever its endpoint."""

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end the answer."""
        ...

    @property
    def diagnostics(self) -> DiagnosticsRequest | None:
        """What to tell about the cache."""
        ...

    @property
    def unknown_fields(self) -> tuple[str, ...]:
        """Ignored, and counted."""
        ...


RequestT = TypeVar("RequestT", bound=Parsed)


class Endpoint(Protocol[RequestT]):
    """What one endpoint adds."""

    name: str
    """Of its lines in the log."""
    route: str
    id_prefix: str
    """Of its answers."""

    def parse(self, body: bytes) -> RequestT:
        """Check a body; may run in a thread.

        Raises: InvalidRequestError: what is wrong first.
        """
        ...

    async def prepare(
        self, ingress: Ingress, request_id: str, request: RequestT, identity: Identity, model: ModelInfo
    ) -> PreparedPrompt:
        """Make the request for the engine.

        Raises: GatewayError: it cannot be made.
        """
        ...

    def wire(self, request: RequestT, head: AnswerHead) -> Wire:
        """Begin to print an answer."""
        ...


@dataclass(frozen=True, slots=True)
class Services:
    """What answering takes."""

    model_name: str
    backend: Backend
    ingress: Ingress
    threads: PromptThreads
    tokenizer: Tokenizer
    authenticator: Authenticator
    limiter: Limiter
    metrics: GatewayMetrics
    recent: RecentRequests
    accounting: Accounting
    diagnostics: Diagnostics
    retention: RetentionHints
    log: RequestLog | None = None
    """None: nothing is remembered."""
    clock: Callable[[], float] = time.monotonic
    ping_seconds: float = PING_SECONDS

    def check_model(self, name: str, identity: Identity) -> None:
        """Let a request for a model pass.

        Raises: ModelNotFoundError: another one is served; ModelNotAllowedError: the key is for others.
        """
        if name != self.model_name:
            raise ModelNotFoundError(
                f"model: got {shown(name)}, wanted {self.model_name!r}, the model served here", param="model"
            )
        identity.check_model(name)


@dataclass(frozen=True, slots=True)
class _Task(Generic[RequestT]):
    """One request on its way."""

    entry: RequestEntry
    """For the log; its request id is the client's, or made for it; the engine's is the completion's."""
    request: RequestT
    identity: Identity
    ticket: Ticket
    arrived_at: float
    stream: EventStream
    send: Send


class Serving(Generic[RequestT]):
    """One endpoint, served."""

    def __init__(self, services: Services, endpoint: Endpoint[RequestT]) -> None:
        self._services = services
        self._endpoint = endpoint
        self._reception = Reception(
            services.authenticator,
            services.limiter,
            services.metrics,
            services.threads,
            services.log,
            services.clock,
        )
        self._logger = logging.getLogger(f"gateway.{endpoint.name}")
        self._ids = RandomIds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        with self._reception.admit(scope, self._endpoint.route, self._logger) as arrival:
            await self._serve(arrival, receive, send)

    async def _serve(self, arrival: Arrival, receive: Receive, send: Send) -> None:
        services, entry, identity = self._services, arrival.entry, arrival.identity
        request = await self._reception.read(arrival, receive, self._endpoint.parse)
        services.check_model(request.model, identity)
        services.metrics.count_unknown_fields(request.unknown_fields)
        entry.completion_id = self._endpoint.id_prefix + self._ids.next()
        services.recent.note(entry.request_id, entry.completion_id)
        stream = EventStream(send, services.clock)
        tick = services.ping_seconds / 3
        await run_until_disconnect(
            self._answer(_Task(entry, request, identity, arrival.ticket, arrival.arrived_at, stream, send)),
            receive,
            idle_seconds=tick,
            on_idle=lambda: stream.ping(services.ping_seconds - tick),
        )

    async def _answer(self, task: _Task[RequestT]) -> None:
        services, entry = self._services, task.entry
        created = int(time.time())
        model = services.backend.model_info()
        prepared = await self._endpoint.prepare(
            services.ingress, entry.completion_id, task.request, task.identity, model
        )
        task.ticket.reserve(prepared.most_tokens)
        handed_over_at = services.clock()
        entry.prepare_seconds = handed_over_at - task.arrived_at
        generation = await generate_all(services.backend, prepared.requests)
        admission = generation.admission
        entry.queue_seconds = max(0.0, services.clock() - handed_over_at - admission.seconds_ago)
        entry.rules = prepared.fired_rules
        entry.prompt_id = prepared.prompt_id
        entry.context = prepared.context
        entry.admit(admission)
        record = self._record_of(task, prepared, admission)
        receipt = self._receipt(prepared, admission, model, record)
        services.diagnostics.note(record)
        try:
            services.metrics.count_admission(admission)
            if prepared.context is not None:
                services.metrics.context.count(prepared.context)
            answers = Answers(
                generation,
                [
                    Answer(
                        services.tokenizer,
                        stops=task.request.stops,
                        next_turn=prepared.next_turn,
                        reading=prepared.reading,
                        is_whole=not task.request.stream,
                    )
                    for _ in range(prepared.num_answers)
                ],
                arrived_at=task.arrived_at,
                metrics=services.metrics,
                clock=services.clock,
                tokens=receipt.answer if receipt is not None else None,
            )
            report = cache_header(admission, prepared.fired_rules)
            diagnostics = await self._diagnostics(task, record)
            wire = self._endpoint.wire(
                task.request,
                AnswerHead(
                    entry.completion_id,
                    created,
                    services.model_name,
                    admission,
                    model.block_size,
                    diagnostics,
                    {} if prepared.context is None else prepared.context.fields,
                    scored_prompts(prepared.requests, generation.prompt_logprobs, services.tokenizer),
                ),
            )
            respond = self._stream if task.request.stream else self._respond
            try:
                await respond(task, answers, wire, report)
            finally:
                _give_back(task, answers)
                entry.num_output_tokens = answers.num_tokens
                entry.first_token_seconds = answers.first_token_seconds
        finally:
            generation.abort()
            if receipt is not None:
                services.accounting.end(receipt)
        for retained in prepared.retained:
            services.retention.keep(retained)
        self._logger.info(
            "ended",
            extra={
                "id": entry.completion_id,
                "tenant": entry.tenant_id,
                "generated": answers.num_tokens,
                "cache": report.decode(),
            },
        )

    async def _respond(self, task: _Task[RequestT], answers: Answers, wire: Wire, report: bytes) -> None:
        gathering = Gathering(answers.num_choices)
        async for choice, said in answers:
            gathering.add(choice, said)
        _note_end(task, answers, gathering)
        body = wire.whole(gathering.answers())
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"x-prefixgate-cache", report),
            *task.ticket.headers(),
        ]
        await task.send({"type": "http.response.start", "status": 200, "headers": headers})
        await task.send({"type": "http.response.body", "body": body})

    async def _stream(self, task: _Task[RequestT], answers: Answers, wire: Wire, report: bytes) -> None:
        await task.stream.start([(b"x-prefixgate-cache", report), *task.ticket.headers()], ping=wire.ping)
        gathering = Gathering(answers.num_choices)
        begun: set[int] = set()
        is_gathered = task.entry.request_body is not None  # else an answer is not worth its memory
        held = b""  # the end of an answer, which goes out with what comes next
        try:
            opening = wire.opening()
            if opening:
                await task.stream.write(opening)
            async for choice, said in answers:
                if choice not in begun:
                    begun.add(choice)
                    held += wire.first(choice, said)
                if isinstance(said, AnswerEnd):
                    held += wire.end(choice, said)
                elif frames := held + wire.piece(choice, said):
                    await task.stream.write(frames)
                    held = b""
                if is_gathered:
                    gathering.add(choice, said)
        except (GatewayError, BackendError) as error:
            self._logger.warning("failed while streaming: %s", error)
            await _close_failed(task, answers, wire, error)
            return
        except Exception as error:
            self._logger.exception("failed while streaming")
            await _close_failed(task, answers, wire, error)
            return
        _note_end(task, answers, gathering)
        await task.stream.close(held + wire.close(answers.num_tokens))

    async def _diagnostics(self, task: _Task[RequestT], record: PromptRecord) -> dict[str, Any]:
        wanted = task.request.diagnostics
        return {} if wanted is None else await self._services.diagnostics.fields(wanted, record)

    def _receipt(
        self, prepared: PreparedPrompt, admission: Admission, model: ModelInfo, record: PromptRecord
    ) -> Receipt | None:
        """Count what rules did and what was lost; a prompt that no rule sees is not counted."""
        if prepared.origin is None:
            return None
        return self._services.accounting.admit(
            prepared.request, prepared.origin, admission, identity=prepared.identity, model=model, record=record
        )

    def _record_of(self, task: _Task[RequestT], prepared: PreparedPrompt, admission: Admission) -> PromptRecord:
        roles: Sequence[str] = ()
        tool_names: Sequence[str] = ()
        if prepared.origin is not None:
            conversation = prepared.origin.normalized.conversation
            roles = [message.role for message in conversation.messages]
            tool_names = [str(tool["function"]["name"]) for tool in conversation.tools]
        return PromptRecord(
            completion_id=task.entry.completion_id,
            request_id=task.entry.request_id,
            tenant_id=task.entry.tenant_id,
            route=self._endpoint.route,
            num_prompt_tokens=admission.num_prompt_tokens,
            num_common_tokens=admission.num_common_tokens,
            roles=tuple(roles),
            tool_names=tuple(tool_names),
            rendered=prepared.rendered,
            cut_tokens=prepared.cut_tokens,
        )


async def _close_failed(task: _Task[RequestT], answers: Answers, wire: Wire, error: Exception) -> None:
    problem = problem_of(error)
    _give_back(task, answers)
    task.entry.fail(problem)
    await task.stream.close(wire.failure(problem))


def _note_end(task: _Task[RequestT], answers: Answers, gathering: Gathering) -> None:
    _give_back(task, answers)
    entry = task.entry
    entry.status = 200
    entry.finish_reason = answers.finish_reason
    if entry.request_body is not None:
        entry.answer_text = "\n\n".join(answer.as_text() for answer in gathering.answers())


def _give_back(task: _Task[RequestT], answers: Answers) -> None:
    """Settle with the limits, before the last bytes go out: whoever has them may ask again at once."""
    task.ticket.settle(answers.admission.num_prompt_tokens + answers.num_tokens)
    task.ticket.close()
