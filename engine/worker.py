"""The worker process: one engine, one thread, one loop, one socket to the gateway that started it.

Started as `python -m engine.worker --endpoint ipc://… --parent PID` with an `EngineConfig` as JSON on standard input.
Ends on SIGTERM, or when that parent is gone. SIGINT is the parent's business: a terminal sends it to both.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from socket import socketpair

import msgspec
import zmq

from engine.calls import Call, CancelCall
from engine.config import EngineConfig
from engine.errors import EngineError, InvalidRequestError
from engine.grammars import load_grammars
from engine.llm_engine import LLMEngine
from engine.messages import (
    AbortRequest,
    AddRequest,
    EngineFailed,
    EngineReady,
    FromWorker,
    GetSnapshot,
    Heartbeat,
    RequestFailed,
    decode_to_worker,
    encode,
)

logger = logging.getLogger(__name__)

SPIN_COUNT = "10000"
"""How long an OpenMP thread of torch spins at a barrier. With the default, one busy neighbour on two cores made a decode
step 14 to 47 times slower; with this it is 2 times, and as fast as ever on an idle machine."""
HEARTBEAT_SECONDS = 1.0
"""Between two signs of life, while no step runs longer than that."""

COMPILING_MS = 2
"""Between two looks whether a grammar is ready, while there is nothing else to do."""


class Worker:
    """Feeds an engine from a socket and sends back what it says."""

    def __init__(
        self, engine: LLMEngine, ready: EngineReady, socket: zmq.Socket[bytes], *, parent_pid: int, signals: int
    ) -> None:
        self._engine = engine
        self._socket = socket
        self._parent_pid = parent_pid
        self._idle = zmq.Poller()
        self._idle.register(socket, zmq.POLLIN)
        self._idle.register(signals, zmq.POLLIN)
        self._stopping = False
        self._next_heartbeat = 0.0
        self._send(ready)

    def stop(self) -> None:
        """Leave the loop after the current step."""
        self._stopping = True

    def run(self) -> None:
        """Serve until `stop()`, or until the parent is gone."""
        while not self._stopping and os.getppid() == self._parent_pid:
            self._receive()
            if self._engine.has_work:
                for message in self._engine.step():
                    self._send(message)
            self._beat()

    def _receive(self) -> None:
        """Take all messages there are; wait for one only while there is nothing to compute."""
        if not self._engine.has_work:
            self._idle.poll(COMPILING_MS if self._engine.is_compiling else int(HEARTBEAT_SECONDS * 1000))
        while self._socket.poll(0):
            self._handle(self._socket.recv())

    def _handle(self, frame: bytes) -> None:
        match decode_to_worker(frame):
            case AddRequest() as message:
                try:
                    self._engine.add(message)
                except InvalidRequestError as error:
                    self._send(RequestFailed(message.request_id, str(error), error.param))
            case AbortRequest(request_id, index):
                self._engine.abort(request_id, index)
            case GetSnapshot(call_id):
                self._send(self._engine.snapshot(call_id))
            case Call() as call:
                for answer in self._engine.call(call):
                    self._send(answer)
            case CancelCall(call_id):
                self._engine.cancel_call(call_id)

    def _beat(self) -> None:
        now = time.monotonic()
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + HEARTBEAT_SECONDS
            self._send(Heartbeat(self._engine.num_steps))

    def _send(self, message: FromWorker) -> None:
        self._socket.send(encode(message))


@contextmanager
def _caught_signals() -> Iterator[int]:
    """Give a file descriptor that can be read when a signal came: a wait that a signal interrupts begins anew."""
    here, there = socketpair()
    there.setblocking(False)
    with here, there:
        signal.set_wakeup_fd(there.fileno())
        try:
            yield here.fileno()
        finally:
            signal.set_wakeup_fd(-1)


def build_engine(config: EngineConfig) -> tuple[LLMEngine, EngineReady]:
    """Load the model and allocate the pool.

    Raises: EngineError: the configuration, the model's files or the machine do not allow it.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)  # read when torch loads, which is on the next line
    from engine.model_runner import ModelRunner

    runner = ModelRunner(config)
    config = replace(config, scheduler=replace(config.scheduler, max_num_seqs=runner.max_num_seqs))
    folder = Path(config.model_path)
    grammars = load_grammars(folder, vocab_size=runner.vocab_size, eos_token_ids=runner.eos_token_ids)
    engine = LLMEngine(config, runner, grammars=grammars)
    ready = EngineReady(
        dtype=str(runner.dtype).removeprefix("torch."),
        device=str(runner.device),
        max_model_len=min(runner.max_model_len, engine.cache.max_request_tokens()),
        block_size=config.cache.block_size,
        num_blocks=runner.num_blocks,
        hash_seed=engine.hash_seed,
        hash_epoch=engine.hash_epoch,
        namespace_fields=runner.namespace_fields(),
        eos_token_ids=sorted(runner.eos_token_ids),
        kv_bytes_per_token=runner.kv_bytes_per_token,
        warnings=list(runner.warnings),
    )
    return engine, ready


def main(
    argv: list[str] | None = None, *, build: Callable[[EngineConfig], tuple[LLMEngine, EngineReady]] = build_engine
) -> int:
    """Run a worker; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m engine.worker", description=__doc__)
    parser.add_argument("--endpoint", required=True, help="ZeroMQ address of the gateway, ipc:// or tcp://")
    parser.add_argument("--parent", required=True, type=int, help="process id of the gateway; without it we end")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getppid() != args.parent:
        return 0  # it is gone already
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineConfig)

    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.set_hwm(0)  # nothing is dropped: what is in flight is bounded by the requests that the gateway admits
        socket.linger = 1000  # a farewell gets out, a gateway that is gone does not hold us
        socket.connect(args.endpoint)
        try:
            engine, ready = build(config)
        except EngineError as error:
            socket.send(encode(EngineFailed(str(error), fatal=True)))
            return 1
        with _caught_signals() as signals:
            worker = Worker(engine, ready, socket, parent_pid=args.parent, signals=signals)
            signal.signal(signal.SIGTERM, lambda *_: worker.stop())
            worker.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
