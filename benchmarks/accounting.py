"""What accounting costs: CPU time per request, with the sample and without it, in turns.

    python -m benchmarks.accounting

The gateway answers chats of several turns, over a stub in the engine's place. Some requests carry a client's accounting
line in front of a long system text: a rule fires in each, and for the sample the prompt is rendered and tokenized once
more as it came. What the sample costs is taken from runs with every family in it. It is set beside what `prefixgate serve`
takes for such a request, gateway and engine together: one with a cached history and 32 tokens of answer, the cheapest
that is worth the name.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from benchmarks.machine import describe
from engine import model_store
from gateway.app import create_app
from gateway.backends.base import Admission, GenerationRequest, ModelInfo
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from prefixcache.interface import PrefixCacheConfig
from tests.gateway.support.fake_backend import FakeBackend
from tests.support.server import Server

SAMPLING = Settings.model_fields["accounting_sampling"].default
WANTED = 0.01
NUM_FAMILIES, NUM_TURNS = 12, 8
BLOCK_SIZE, NUM_BLOCKS = 32, 4096
PATH = "/v1/chat/completions"


def bodies(*, has_header: bool) -> list[bytes]:
    """Chats of families that differ from their first words on; each turn has all before it."""
    made = []
    for turn in range(NUM_TURNS):
        for family in range(NUM_FAMILIES):
            system = f"Number {family * 7919} is your office. " + "Answer from the handbook, and say which page." * 120
            header = f"x-anthropic-billing-header: cc_version=1.{turn}.{family}; cch={turn * 4099 + family:05x};\n"
            messages = [{"role": "system", "content": (header if has_header else "") + system}]
            for earlier in range(turn + 1):
                messages += [
                    {"role": "user", "content": f"Question {earlier} of office {family}: " + "what then? " * 40},
                    {"role": "assistant", "content": f"Page {earlier}. " + "It says so there. " * 40},
                ]
            made.append(json.dumps({"model": "bench", "messages": messages[:-1], "max_tokens": 1}).encode())
    return made


class Stub(FakeBackend):
    """Blocks as the engine has them by default."""

    def model_info(self) -> ModelInfo:
        """As a worker of the default model says it."""
        cache = PrefixCacheConfig(NUM_BLOCKS, block_size=BLOCK_SIZE, hash_seed=7, hash_epoch=1)
        return replace(super().model_info(), block_size=BLOCK_SIZE, cache=cache)

    def _admission(self, request: GenerationRequest) -> Admission:
        return Admission(len(request.token_ids), 0, {}, "never_cached")


class Gateway:
    """A gateway over a stub."""

    def __init__(self, files: ModelFiles, sampling: float) -> None:
        backend = Stub(reply=[5], ends=False, max_model_len=8192)
        self.app = create_app(Settings(accounting_sampling=sampling), backend, files)

    async def answer(self, body: bytes) -> None:
        """One request, without a socket or a client's work."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "method": "POST",
            "path": PATH,
            "raw_path": PATH.encode(),
            "query_string": b"",
            "headers": [(b"content-length", str(len(body)).encode())],
            "client": ("127.0.0.1", 1),
            "scheme": "http",
        }
        coming = [{"type": "http.request", "body": body, "more_body": False}]
        forever = asyncio.Event()
        status: list[int] = []

        async def receive() -> dict[str, Any]:
            if coming:
                return coming.pop()
            await forever.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            status.extend([message["status"]] if "status" in message else [])

        await self.app(scope, receive, send)
        assert status == [200], status


async def cpu_seconds(files: ModelFiles, sampling: float, made: Sequence[bytes]) -> float:
    """CPU time per request of this process, the accounting's thread included."""
    gateway = Gateway(files, sampling)
    accounting = gateway.app.state.accounting
    await gateway.answer(made[0])
    start = time.process_time()
    for body in made:
        await gateway.answer(body)
    await accounting.settle()
    seconds = time.process_time() - start
    accounting.close()
    return seconds / len(made)


def server_cpu_seconds(made: Sequence[bytes]) -> float:
    """CPU time of gateway and engine for a request of a chat that goes on, median."""
    taken = []
    with Server([]) as server:
        name = httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"]
        process_ids = [server.process.pid, *_children(server.process.pid)]
        for body in made[::NUM_FAMILIES]:
            start = sum(map(_cpu_seconds_of, process_ids))
            chat = json.loads(body) | {"model": name, "max_tokens": 32, "ignore_eos": True}
            httpx.post(server.url + PATH, json=chat, timeout=300).raise_for_status()
            taken.append(sum(map(_cpu_seconds_of, process_ids)) - start)
    return statistics.median(taken[1:])


def _children(process_id: int) -> list[int]:
    tasks = Path(f"/proc/{process_id}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def _cpu_seconds_of(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(files: ModelFiles, *, has_header: bool, num_rounds: int) -> dict[str, float]:
    """Medians over rounds, each with every setting in turn."""
    made = bodies(has_header=has_header)
    settings = {"off": 0.0, "hashed": 1e-9, "sampled": 1.0}
    rounds: dict[str, list[float]] = {name: [] for name in settings}
    for _ in range(num_rounds):
        for name, sampling in settings.items():
            rounds[name].append(asyncio.run(cpu_seconds(files, sampling, made)))
    return {name: statistics.median(values) for name, values in rounds.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; status 1 where it costs too much."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accounting", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args(argv)
    found = model_store.resolve("smollm2-135m-instruct")
    files = ModelFiles.from_folder(found.folder, "bench")
    print(describe())
    whole = server_cpu_seconds(bodies(has_header=False))
    print(f"gateway and engine: {1e3 * whole:.0f} ms a request")
    is_fine = True
    for has_header, name in ((False, "no rule fires"), (True, "a rule fires in each request")):
        seconds = measure(files, has_header=has_header, num_rounds=args.rounds)
        more = seconds["sampled"] - seconds["off"]
        is_fine &= SAMPLING * more <= WANTED * whole
        print(
            f"{name}: gateway {1e6 * seconds['off']:.0f} µs, {1e6 * (seconds['hashed'] - seconds['off']):+.0f} µs where the "
            f"request is not in the sample, {1e6 * more:+.0f} µs where it is; at a sampling of {SAMPLING} that is "
            f"{SAMPLING * more / seconds['off']:+.2%} of the gateway's and {SAMPLING * more / whole:+.3%} of all (wanted: "
            f"<= {WANTED:.0%})"
        )
    return int(not is_fine)


if __name__ == "__main__":
    sys.exit(main())
