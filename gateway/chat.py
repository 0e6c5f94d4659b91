"""`POST /v1/chat/completions`: a plain ASGI endpoint from the bytes of a body to the bytes of an answer.

Errors before the first byte are raised and become a response elsewhere; later ones are an event in the stream. A client
that goes away, at any moment, cancels the work, and that aborts the generation.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from gateway.accounting.accounting import Accounting
from gateway.answer import Answer
from gateway.auth import Authenticator, Identity
from gateway.backends.base import Admission, Backend, BackendError
from gateway.chat_request import ChatRequest
from gateway.chat_wire import AnswerHead, ChunkWriter, cache_header, completion_body, usage_of
from gateway.disconnect import ClientDisconnectedError, read_body, run_until_disconnect
from gateway.errors import GatewayError, ModelNotFoundError, problem_of, shown
from gateway.explain.diagnostics import Diagnostics
from gateway.explain.records import PromptRecord
from gateway.ingress import Ingress, PreparedPrompt
from gateway.limits.limiter import Limiter, Ticket
from gateway.metrics import GatewayMetrics
from gateway.recent import RecentRequests
from gateway.request_entry import RequestEntry
from gateway.sse import DONE, EventStream, data
from gateway.storage.request_log import RequestLog
from gateway.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

PATH = "/v1/chat/completions"
PING_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class ChatServices:
    """What answering a chat takes."""

    model_name: str
    backend: Backend
    ingress: Ingress
    tokenizer: Tokenizer
    authenticator: Authenticator
    limiter: Limiter
    metrics: GatewayMetrics
    recent: RecentRequests
    accounting: Accounting
    diagnostics: Diagnostics
    log: RequestLog | None = None
    """None: nothing is remembered."""
    clock: Callable[[], float] = time.monotonic
    ping_seconds: float = PING_SECONDS


@dataclass(frozen=True, slots=True)
class _Task:
    """One request on its way."""

    entry: RequestEntry
    """For the log; its request id is the client's, or made for it; the engine's is the completion's."""
    chat: ChatRequest
    identity: Identity
    ticket: Ticket
    head: AnswerHead
    arrived_at: float
    stream: EventStream
    send: Send


class ChatCompletions:
    """The endpoint."""

    def __init__(self, services: ChatServices) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        services = self._services
        arrived_at = services.clock()
        request_id: str = scope["state"]["request_id"]
        identity = services.authenticator.identify(Headers(scope=scope))
        entry = RequestEntry(request_id, PATH, identity.tenant, identity.key_id, created_at=time.time())
        try:
            with services.limiter.admit(identity) as ticket:
                await self._serve(entry, identity, ticket, arrived_at, receive, send)
        except ClientDisconnectedError:
            services.metrics.aborted_requests.inc()
            logger.info("client gone")
        except Exception as error:
            entry.fail(problem_of(error))
            raise
        finally:
            entry.total_seconds = services.clock() - arrived_at
            if services.log is not None:
                services.log.record(entry)

    async def _serve(
        self, entry: RequestEntry, identity: Identity, ticket: Ticket, arrived_at: float, receive: Receive, send: Send
    ) -> None:
        services = self._services
        body = await read_body(receive)
        chat = await services.ingress.parse(body)
        entry.model, entry.is_stream = chat.model, chat.stream
        if services.log is not None and services.log.keeps_content:
            entry.request_body = body.decode()
        self._check_model(chat.model)
        identity.check_model(chat.model)
        services.metrics.count_unknown_fields(chat.unknown_fields)
        head = AnswerHead(f"chatcmpl-{uuid.uuid4().hex}", int(time.time()), services.model_name)
        entry.completion_id = head.completion_id
        services.recent.note(entry.request_id, head.completion_id)
        stream = EventStream(send, services.clock)
        tick = services.ping_seconds / 3
        await run_until_disconnect(
            self._answer(_Task(entry, chat, identity, ticket, head, arrived_at, stream, send)),
            receive,
            idle_seconds=tick,
            on_idle=lambda: stream.ping(services.ping_seconds - tick),
        )

    def _check_model(self, name: str) -> None:
        served = self._services.model_name
        if name != served:
            raise ModelNotFoundError(
                f"model: got {shown(name)}, wanted {served!r}, the model served here", param="model"
            )

    async def _answer(self, task: _Task) -> None:
        services = self._services
        model = services.backend.model_info()
        prepared = await services.ingress.prepare(
            task.head.completion_id, task.chat, route=PATH, identity=task.identity, model=model
        )
        task.ticket.reserve(len(prepared.request.token_ids) + prepared.request.sampling.max_tokens)
        handed_over_at = services.clock()
        generation = await services.backend.generate(prepared.request)
        entry = task.entry
        entry.queue_seconds = services.clock() - handed_over_at
        entry.rules = prepared.fired_rules
        entry.prompt_id = prepared.prompt_id
        entry.admit(generation.admission)
        receipt = services.accounting.admit(
            prepared.request, prepared.origin, generation.admission, identity=task.identity, model=model
        )
        record = _record_of(task, prepared, generation.admission)
        services.diagnostics.note(record)
        try:
            services.metrics.count_admission(generation.admission)
            answer = Answer(
                generation,
                services.tokenizer,
                stops=task.chat.stops,
                arrived_at=task.arrived_at,
                metrics=services.metrics,
                clock=services.clock,
                tokens=receipt.answer if receipt is not None else None,
                next_turn=prepared.next_turn,
            )
            report = cache_header(generation.admission, prepared.fired_rules)
            respond = self._stream if task.chat.stream else self._respond
            try:
                await respond(task, answer, report, record)
            finally:
                _give_back(task, answer)
                entry.num_output_tokens = answer.num_tokens
                entry.first_token_seconds = answer.first_token_seconds
        finally:
            generation.abort()
            if receipt is not None:
                services.accounting.end(receipt)
        logger.info(
            "ended",
            extra={
                "id": entry.completion_id,
                "tenant": entry.tenant_id,
                "generated": answer.num_tokens,
                "cache": report.decode(),
            },
        )

    async def _respond(self, task: _Task, answer: Answer, report: bytes, record: PromptRecord) -> None:
        text = "".join([piece async for piece in answer.text()])
        self._note_end(task, answer, text)
        usage = usage_of(answer.admission, answer.num_tokens)
        extra = await self._diagnostics(task, record)
        body = completion_body(task.head, text, answer.finish_reason, usage, extra)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"x-prefixgate-cache", report),
            *task.ticket.headers(),
        ]
        await task.send({"type": "http.response.start", "status": 200, "headers": headers})
        await task.send({"type": "http.response.body", "body": body})

    async def _stream(self, task: _Task, answer: Answer, report: bytes, record: PromptRecord) -> None:
        chunks = ChunkWriter(task.head, include_usage=task.chat.include_usage)
        await task.stream.start([(b"x-prefixgate-cache", report), *task.ticket.headers()])
        pieces: list[str] = []
        role = chunks.role()  # sent with the first text: a client that times its first chunk times a token
        try:
            async for text in answer.text():
                await task.stream.write(role + chunks.content(text))
                role = b""
                if task.entry.request_body is not None:  # else an answer is not worth its memory
                    pieces.append(text)
        except (GatewayError, BackendError) as error:
            logger.warning("failed while streaming: %s", error)
            await self._close_failed(task, answer, error)
            return
        except Exception as error:
            logger.exception("failed while streaming")
            await self._close_failed(task, answer, error)
            return
        self._note_end(task, answer, "".join(pieces))
        end = role + chunks.finish(answer.finish_reason, await self._diagnostics(task, record))
        if task.chat.include_usage:
            end += chunks.usage(usage_of(answer.admission, answer.num_tokens))
        await task.stream.close(end + DONE)

    async def _diagnostics(self, task: _Task, record: PromptRecord) -> dict[str, Any]:
        wanted = task.chat.diagnostics
        return {} if wanted is None else await self._services.diagnostics.fields(wanted, record)

    async def _close_failed(self, task: _Task, answer: Answer, error: Exception) -> None:
        problem = problem_of(error)
        _give_back(task, answer)
        task.entry.fail(problem)
        await task.stream.close(data(problem.body))

    def _note_end(self, task: _Task, answer: Answer, text: str) -> None:
        _give_back(task, answer)
        task.entry.status = 200
        task.entry.finish_reason = answer.finish_reason
        if task.entry.request_body is not None:
            task.entry.answer_text = text


def _give_back(task: _Task, answer: Answer) -> None:
    """Settle with the limits, before the last bytes go out: whoever has them may ask again at once."""
    task.ticket.settle(answer.admission.num_prompt_tokens + answer.num_tokens)
    task.ticket.close()


def _record_of(task: _Task, prepared: PreparedPrompt, admission: Admission) -> PromptRecord:
    conversation = prepared.conversation
    return PromptRecord(
        completion_id=task.entry.completion_id,
        request_id=task.entry.request_id,
        tenant_id=task.entry.tenant_id,
        route=PATH,
        num_prompt_tokens=admission.num_prompt_tokens,
        num_common_tokens=admission.num_common_tokens,
        roles=tuple(message.role for message in conversation.messages),
        tool_names=tuple(str(tool["function"]["name"]) for tool in conversation.tools),
        rendered=prepared.rendered,
    )
