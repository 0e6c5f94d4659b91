"""One worker process from start to end, with its socket and its generations.

Each life has a socket of its own, so that nothing meant for one life reaches the next. When it ends, every generation
and every question that is still open ends with an error. Knows nothing of restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import os
import sys
import time
from collections import OrderedDict
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from engine.calls import Call, CancelCall, Order, Outcome, Reply
from engine.config import EngineConfig
from engine.messages import (
    AbortRequest,
    AddRequest,
    Admitted,
    EngineFailed,
    EngineReady,
    EngineSnapshot,
    GetSnapshot,
    PromptLogprobs,
    RequestFailed,
    SamplingParams,
    StepOutputs,
    TokenOutput,
    ToWorker,
    decode_from_worker,
    encode,
)
from engine.messages import TokenLogprobs as EngineLogprobs
from gateway.backends.base import (
    Admission,
    BackendFailedError,
    BackendOverloadedError,
    GenerationRequest,
    RequestRejectedError,
    TokenLogprobs,
)
from gateway.backends.control import HashedPrompt
from gateway.backends.local.generation import LocalGeneration

MAX_NAMED_REQUESTS = 4096
"""More than run, wait or are remembered by the worker at once."""
STOP_SECONDS = 10.0
"""A worker that has not ended so long after SIGTERM is killed."""


class WorkerLife:
    """Start with `run`; `ready` holds the facts of the model while it serves."""

    def __init__(
        self, endpoint: str, *, start_timeout: float, heartbeat_timeout: float, retry_after_seconds: int
    ) -> None:
        self._endpoint = endpoint
        self._retry_after_seconds = retry_after_seconds
        self._start_timeout = start_timeout
        self._heartbeat_timeout = heartbeat_timeout
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set_hwm(0)  # nothing is dropped: what is in flight is bounded by the clients there are
        self._socket.linger = 0
        self._socket.bind(endpoint)
        self._generations: dict[str, LocalGeneration] = {}
        self._wire_ids: OrderedDict[str, str] = OrderedDict()
        """request_id -> its short name on the wire, of the last requests."""
        self._questions: dict[int, asyncio.Future[EngineSnapshot | Outcome]] = {}
        self._last_word = time.monotonic()
        self._ids = itertools.count()
        self.process_id: int | None = None
        self.ready: EngineReady | None = None
        self.max_request_tokens: int | None = None
        """What pins leave of the limit; None: none was made or given back yet."""
        self.became_ready = asyncio.Event()
        self._why_ended = "the engine worker ended while it worked on this request; try again"
        self.fatal: str | None = None
        """Why another life would end the same way."""

    async def run(self, command: tuple[str, ...], config: EngineConfig) -> str:
        """Start the process and live until it ends or is silent for too long; return why it ended.

        Cancelling it ends the process, for the server stops.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                *("--endpoint", self._endpoint, "--parent", str(os.getpid())),
                stdin=asyncio.subprocess.PIPE,
                stdout=sys.stderr.fileno(),
            )
            try:
                return await self._live_with(process, config)
            except asyncio.CancelledError:
                self._why_ended = "the server is stopping and could not wait for the end of this answer; try again"
                raise
            finally:
                await _end(process)
        finally:
            self._close()

    async def _live_with(self, process: asyncio.subprocess.Process, config: EngineConfig) -> str:
        self.process_id = process.pid
        tasks = [asyncio.ensure_future(awaitable) for awaitable in (process.wait(), self._read(), self._watch())]
        try:
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(config))
            process.stdin.close()
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            ended, reader, watch = tasks
            if reader.done():
                reader.result()  # raises what broke it
            if watch.done():
                process.kill()  # it hangs: it would not hear a polite word
                return f"the engine worker said nothing for {watch.result():g} s"
            await self._read_rest()
            return f"the engine worker ended with status {ended.result()}"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def silent_seconds(self) -> float:
        """Since the last word of the worker."""
        return time.monotonic() - self._last_word

    async def add(self, request: GenerationRequest, *, num_earlier_blocks: int) -> LocalGeneration:
        """Send a request and wait until it is admitted; cancelling the wait aborts it.

        Args:
            request: what to go on from.
            num_earlier_blocks: leading full blocks of it that earlier lives had.
        """
        wire_id = str(next(self._ids))
        self._wire_ids[request.request_id] = wire_id
        if len(self._wire_ids) > MAX_NAMED_REQUESTS:
            self._wire_ids.popitem(last=False)
        generation = LocalGeneration(
            num_choices=request.sampling.n,
            abort=functools.partial(self._abort, wire_id),
            end=functools.partial(self._end_answer, wire_id),
        )
        self._generations[wire_id] = generation
        self._send(
            AddRequest(
                request_id=wire_id,
                **prompt_fields(request),
                sampling=SamplingParams(**dataclasses.asdict(request.sampling)),
                num_earlier_blocks=num_earlier_blocks,
                tenant=request.tenant,
            )
        )
        try:
            await generation.wait_admitted()
        except asyncio.CancelledError:
            generation.abort()
            raise
        return generation

    async def snapshot(self) -> EngineSnapshot:
        """Ask the worker for its numbers."""
        call_id = next(self._ids)
        snapshot = await self._ask(call_id, GetSnapshot(call_id))
        assert isinstance(snapshot, EngineSnapshot)
        return snapshot

    async def call(self, order: Order) -> Outcome:
        """Have an order carried out; cancelling the wait ends the work on it."""
        call_id = next(self._ids)
        try:
            outcome = await self._ask(call_id, Call(call_id, order))
        except asyncio.CancelledError:
            self._send(CancelCall(call_id))
            raise
        assert not isinstance(outcome, EngineSnapshot)
        return outcome

    def wire_id(self, request_id: str) -> str | None:
        """Return what the worker knows one of the last requests by."""
        return self._wire_ids.get(request_id)

    def request_id(self, wire_id: str) -> str | None:
        """Return which of the last requests the worker knows by this name."""
        return next((name for name, known in self._wire_ids.items() if known == wire_id), None)

    async def _ask(self, call_id: int, question: ToWorker) -> EngineSnapshot | Outcome:
        answer: asyncio.Future[EngineSnapshot | Outcome] = asyncio.get_running_loop().create_future()
        self._questions[call_id] = answer
        self._send(question)
        try:
            return await answer
        finally:
            self._questions.pop(call_id, None)

    def _abort(self, wire_id: str) -> None:
        if self._generations.pop(wire_id, None) is not None:
            self._send(AbortRequest(wire_id))

    def _end_answer(self, wire_id: str, index: int) -> None:
        """One answer is over for its reader; with the last one the request is."""
        generation = self._generations.get(wire_id)
        if generation is None:
            return
        if generation.is_over:
            self._abort(wire_id)
        else:
            self._send(AbortRequest(wire_id, index))

    def _send(self, message: ToWorker) -> None:
        """Send without waiting. It can only fail when the worker is gone, and its end tells everybody who waits."""
        sent = asyncio.ensure_future(self._socket.send(encode(message), zmq.DONTWAIT))
        sent.add_done_callback(lambda future: future.cancelled() or future.exception())

    async def _read(self) -> None:
        while True:
            self._dispatch(await self._socket.recv())

    async def _read_rest(self) -> None:
        """Take what the worker said before it ended."""
        while await self._socket.poll(0):
            self._dispatch(await self._socket.recv())

    def _dispatch(self, frame: bytes) -> None:
        self._last_word = time.monotonic()
        match decode_from_worker(frame):
            case StepOutputs(outputs):
                for output in outputs:
                    self._push(output)
            case (Admitted() | PromptLogprobs() | RequestFailed()) as message:
                self._tell(message)
            case (EngineSnapshot(call_id) as said) | Reply(call_id, said):
                self._answer(call_id, said)
            case EngineReady() as ready:
                self.ready = ready
                self.became_ready.set()
            case EngineFailed(why, True):
                self.fatal = why

    def _tell(self, message: Admitted | PromptLogprobs | RequestFailed) -> None:
        generation = self._generations.get(message.request_id)
        if generation is None:
            return  # aborted; the worker had not heard of it yet
        match message:
            case Admitted():
                generation.admit(_admission(message))
            case PromptLogprobs(_, position, said):
                generation.tell_prompt(position - 1, [_logprobs(token) for token in said])
            case RequestFailed(_, why, param, retryable):
                del self._generations[message.request_id]
                generation.fail(BackendOverloadedError(why) if retryable else RequestRejectedError(why, param=param))

    def _push(self, output: TokenOutput) -> None:
        generation = self._generations.get(output.request_id)
        if generation is None:
            return  # aborted; the worker had not heard of it yet
        told = None if output.logprobs is None else [_logprobs(said) for said in output.logprobs]
        generation.push(output.index, output.token_ids, output.finish_reason, told)
        if generation.is_over:
            del self._generations[output.request_id]

    def _answer(self, call_id: int, said: EngineSnapshot | Outcome) -> None:
        answer = self._questions.pop(call_id, None)
        if answer is not None and not answer.done():
            answer.set_result(said)

    async def _watch(self) -> float:
        """Return, with the limit, when the worker has been silent for too long."""
        while True:
            limit = self._heartbeat_timeout if self.ready else self._start_timeout
            left = limit - self.silent_seconds
            if left <= 0:
                return limit
            await asyncio.sleep(min(left, 1.0))

    def _close(self) -> None:
        self.ready = None
        why = self._why_ended
        for generation in self._generations.values():
            generation.fail(BackendFailedError(why, retry_after_seconds=self._retry_after_seconds))
        self._generations.clear()
        for answer in self._questions.values():
            if not answer.done():
                answer.set_exception(BackendFailedError(why))
        self._socket.close()
        self._context.term()


def prompt_fields(prompt: HashedPrompt) -> dict[str, Any]:
    """Return the fields of the engine's own `HashedPrompt`."""
    return {
        "token_ids": prompt.token_ids.tobytes(),
        "block_hashes": prompt.block_hashes,
        "scopes": list(prompt.scopes),
        "hash_epoch": prompt.hash_epoch,
    }


def _admission(told: Admitted) -> Admission:
    return Admission(
        told.num_prompt_tokens,
        told.num_cached_tokens,
        told.reasons,
        told.reason,
        told.num_common_tokens,
        saved_seconds=told.saved_seconds,
        evictions_ago=told.evictions_ago,
        seconds_ago=told.seconds_ago,
    )


def _logprobs(said: EngineLogprobs) -> TokenLogprobs:
    return TokenLogprobs(said.logprob, list(zip(said.top_ids, said.top_logprobs, strict=True)), said.rank)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask a process to end, and make it."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
