"""The sides that are servers of their own: `prefixgate serve` with its defaults, and llama.cpp's."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.loads import Load
from benchmarks.peers import SideMissingError
from benchmarks.peers.closed_loop import run_chats
from benchmarks.timings import Figures
from tests.support.server import Server, free_port

_START_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Prefixgate:
    """This project."""

    model: str
    flags: Sequence[str] = ()
    """For `serve`; none means its defaults."""
    name: str = "prefixgate"

    def run(self, load: Load, round_number: int) -> Figures:
        """See `Side`."""
        with Server([self.model, *self.flags]) as server:
            return run_chats(server.url, load, round_number)


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """llama.cpp: `llama-server` for chats, `llama-bench` beside it for the single stream."""

    gguf: Path
    server: Path | None
    name: str = "llama.cpp"

    def run(self, load: Load, round_number: int) -> Figures:
        """See `Side`."""
        if self.server is None:
            raise SideMissingError("not installed: give --llama-server PATH")
        if load.concurrency == 1:
            return self._bench(load)
        with _llama_server(self.server, self.gguf, load) as url:
            return run_chats(url, load, round_number)

    def _bench(self, load: Load) -> Figures:
        assert self.server is not None
        bench = self.server.with_name("llama-bench")
        if not bench.is_file():
            raise SideMissingError(f"no llama-bench beside {self.server.name}")
        command = [bench, "-m", self.gguf, "-p", "0", "-n", str(load.max_tokens), "-r", "1", "-o", "json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return Figures(tokens_per_second=json.loads(done.stdout)[0]["avg_ts"])


@contextmanager
def _llama_server(program: Path, gguf: Path, load: Load) -> Iterator[str]:
    """Run llama-server with a slot for each chat that runs at the same time, and room for it."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    slot_tokens = 2048
    command = [program, "-m", gguf, "--port", str(port), "--parallel", str(load.concurrency)]
    command += ["-c", str(load.concurrency * slot_tokens)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait(url, process)
            yield url
        finally:
            process.terminate()
            process.wait()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SideMissingError(f"llama-server ended with status {process.returncode} at start")
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SideMissingError(f"llama-server was not ready after {_START_SECONDS} s")
