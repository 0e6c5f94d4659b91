"""The servers of the benchmark, each in a process of its own and on the core that it is told."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.machine import ROOT

ADMIN_KEY = "for-the-benchmark-alone"
_ADDRESS = re.compile(r"on http://127\.0\.0\.1:(\d+)")
_FLAGS = ("--port", "0", "--limit-requests-per-minute", "1000000000", "--limit-concurrency", "100000")
_TOKEN_FLAGS = ("--limit-tokens-per-minute", "1000000000000")


@dataclass(frozen=True, slots=True)
class Side:
    """One server that is measured."""

    name: str
    process: subprocess.Popen[str]
    port: int
    key: str = ""
    """Good for its `/v1`; empty: none is needed."""

    def cpu_seconds(self) -> float:
        """CPU time of the whole process so far."""
        # The kernel's clock of another process, in nanoseconds; /proc has ticks of 10 ms. Source: clock_getcpuclockid(3).
        return time.clock_gettime((~self.process.pid << 3) | 2)


def cores() -> tuple[set[int], set[int]]:
    """Give one core to what is measured, another to the client and the mock; on a machine of one core it is the same."""
    usable = sorted(os.sched_getaffinity(0))
    return {usable[0]}, {usable[-1]}


@contextmanager
def sides(folder: Path, scratch: Path, names: Sequence[str]) -> Any:
    """Start them: `direct`, the mock, always; of the others those that are named.

    Args:
        folder: of a model; its tokenizer and template are read.
        scratch: for databases.
        names: of `bare`, `local` and `upstream`.
    """
    own, other = cores()
    with ExitStack() as stack:
        process = stack.enter_context(_child(["-m", "benchmarks.overhead.mock"], other, scratch / "direct.log", {}))
        assert process.stdout is not None
        direct = Side("direct", process, int(process.stdout.readline()))
        commands = {
            "bare": ["-m", "benchmarks.overhead.sides", "bare", *_FLAGS],
            "local": ["-m", "benchmarks.overhead.sides", "local", str(folder), *_FLAGS, *_TOKEN_FLAGS],
            "upstream": ["-m", "gateway", "serve", "--upstream", f"http://127.0.0.1:{direct.port}", *_FLAGS],
        }
        started = [direct]
        for name in names:
            database = f"sqlite+aiosqlite:///{scratch}/{name}.db"
            environment = {"PREFIXGATE_DB": database, "PREFIXGATE_ADMIN_KEY": ADMIN_KEY}
            process = stack.enter_context(_child(commands[name], own, scratch / f"{name}.log", environment))
            port = _port(process, scratch / f"{name}.log")
            started.append(Side(name, process, port, "" if name == "bare" else _make_key(port)))
        yield started


@contextmanager
def _child(arguments: Sequence[str], on: set[int], log: Path, environment: dict[str, str]) -> Any:
    with log.open("w") as lines:  # as a service manager would take them
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=lines,
            text=True,
        )
    try:
        os.sched_setaffinity(process.pid, on)  # before it has threads, which inherit it
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=30)


def _port(process: subprocess.Popen[str], log: Path) -> int:
    assert process.stdout is not None
    for line in process.stdout:
        if found := _ADDRESS.search(line):
            return int(found[1])
    raise RuntimeError(
        f"{process.args}: ended with status {process.wait()} before it served:\n{log.read_text()[-2000:]}"
    )


def _make_key(port: int) -> str:
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/admin/v1", headers=headers) as admin:
        admin.post("/tenants", json={"name": "bench"}).raise_for_status()
        answer = admin.post("/keys", json={"tenant": "bench"}).raise_for_status()
        return str(answer.json()["key"])
