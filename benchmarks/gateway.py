"""What the gateway adds to a call: milliseconds, CPU time a request and a streamed chunk, and requests a core answers.

python -m benchmarks.gateway [--rounds 5] [--sides bare,local,upstream] [--json FILE]

`direct` asks a mock server that answers at once. `upstream` is `prefixgate serve --upstream` in front of it. `local` is
the gateway with an engine that answers at once, in process: it renders, tokenizes and hashes. `bare` is an application
that answers a constant, under the same uvicorn: the floor, which is not ours. Every chat has a system head of 1,000
tokens that was seen before and a turn of 60 that was not; keys, limits, request log and metrics are on. What is measured
has one core to itself; the client and the mock share another. Rounds are interleaved; medians over them are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import uvloop

from benchmarks import machine
from benchmarks.overhead.client import load
from benchmarks.overhead.processes import Side, cores, sides
from benchmarks.timings import quantile

DEFAULT_JSON = machine.ROOT / "benchmarks" / "results" / "gateway.json"
CONCURRENCY = 16
_RULES = (
    "Answer questions about the library's collection in complete sentences.",
    "Never tell one reader what another reader has borrowed or returned.",
    "Before you lend a book, look up the account and check its balance.",
    "When several editions exist, recommend the newest translation first.",
    "Politely decline everything that has nothing to do with literature.",
    "Opening hours depend on the season; consult the calendar beforehand.",
)
_HEAD = "\n".join(f"Section {number}. {' '.join(_RULES)}" for number in range(1, 14))
"""Some 1,000 tokens, and more bytes than are prepared without a thread."""
_TURN = "Which of the novels that you recommended yesterday could I still borrow this weekend, and until when? " * 3
_ANSWER_TOKENS = 16
_SETTLE_SECONDS = 0.7
"""For the last rows of the request log to be written, so that they count."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How much is asked in one round, of one side."""

    alone: int = 200
    """Requests, one after the other."""
    together: int = 2000
    """Requests, 16 at a time."""
    streams: int = 64
    """Of either length, 16 at a time."""
    short: int = 32
    """Chunks of a short stream."""
    long: int = 232
    """Chunks of a long one."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One round of one side; None: it has no streams."""

    alone_p50_ms: float
    alone_p99_ms: float
    together_p50_ms: float
    together_p99_ms: float
    requests_per_second: float
    request_cpu_us: float
    chunk_cpu_us: float | None


class Requests:
    """Prints chats, each with a turn that never came before."""

    def __init__(self) -> None:
        self._number = 0

    def chats(self, side: Side, count: int, *, max_tokens: int = _ANSWER_TOKENS, stream: bool = False) -> list[bytes]:
        """Print so many for a side."""
        return [self._chat(side, max_tokens, stream=stream) for _ in range(count)]

    def _chat(self, side: Side, max_tokens: int, *, stream: bool) -> bytes:
        self._number += 1
        turn = f"{self._number}. {_TURN}"
        messages = [{"role": "system", "content": _HEAD}, {"role": "user", "content": turn}]
        body = orjson.dumps({"model": "mock", "max_tokens": max_tokens, "stream": stream, "messages": messages})
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{side.port}\r\naccept: application/json\r\n"
            f"authorization: Bearer {side.key}\r\nuser-agent: benchmark\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def main() -> int:
    """Measure, print, write."""
    args = _arguments()
    counts = Counts(args.alone, args.together, args.streams)
    with tempfile.TemporaryDirectory() as scratch, sides(args.model, Path(scratch), args.sides) as started:
        report = uvloop.run(measure(started, counts, args.rounds))
    print_table(report)
    args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


async def measure(started: Sequence[Side], counts: Counts, num_rounds: int) -> dict[str, Any]:
    """Warm up, then measure all sides in turn, round after round."""
    requests = Requests()
    for side in started:
        await load(side.port, requests.chats(side, counts.alone), concurrency=CONCURRENCY)
    rounds: list[dict[str, Any]] = []
    for _ in range(num_rounds):
        rounds.append({side.name: asdict(await _figures(side, requests, counts)) for side in started})
    return {"machine": machine.describe(), "counts": asdict(counts), "rounds": rounds, "medians": _medians(rounds)}


async def _figures(side: Side, requests: Requests, counts: Counts) -> Figures:
    alone = await load(side.port, requests.chats(side, counts.alone), concurrency=1)
    chats = requests.chats(side, counts.together)
    cpu = side.cpu_seconds()
    together = await load(side.port, chats, concurrency=CONCURRENCY)
    await asyncio.sleep(_SETTLE_SECONDS)
    cpu = side.cpu_seconds() - cpu
    return Figures(
        alone_p50_ms=1e3 * statistics.median(alone.latencies),
        alone_p99_ms=1e3 * quantile(alone.latencies, 0.99),
        together_p50_ms=1e3 * statistics.median(together.latencies),
        together_p99_ms=1e3 * quantile(together.latencies, 0.99),
        requests_per_second=together.requests_per_second,
        request_cpu_us=1e6 * cpu / counts.together,
        chunk_cpu_us=None if side.name == "bare" else await _chunk_cpu(side, requests, counts),
    )


async def _chunk_cpu(side: Side, requests: Requests, counts: Counts) -> float:
    """CPU microseconds a chunk: what long streams take more than as many short ones."""
    taken = []
    for num_chunks in (counts.short, counts.long):
        chats = requests.chats(side, counts.streams, max_tokens=num_chunks, stream=True)
        cpu = side.cpu_seconds()
        await load(side.port, chats, concurrency=CONCURRENCY, num_events=num_chunks)
        taken.append(side.cpu_seconds() - cpu)
    return 1e6 * (taken[1] - taken[0]) / (counts.streams * (counts.long - counts.short))


def _medians(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        side: {name: _median([entry[side][name] for entry in rounds]) for name in figures}
        for side, figures in rounds[0].items()
    }


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 3) if known else None


_COLUMNS = (
    ("alone_p50_ms", "alone p50", ".2f"),
    ("alone_p99_ms", "p99 ms", ".2f"),
    ("together_p50_ms", "16: p50", ".2f"),
    ("together_p99_ms", "p99 ms", ".2f"),
    ("requests_per_second", "req/s", ".0f"),
    ("request_cpu_us", "CPU µs/req", ".0f"),
    ("chunk_cpu_us", "µs/chunk", ".1f"),
)


def print_table(report: dict[str, Any]) -> None:
    """Print the medians, and what each side adds to a direct call."""
    print(report["machine"])
    print(f"{'':10}" + "".join(f"{title:>12}" for _, title, _ in _COLUMNS) + f"{'added p50':>12}")
    direct = report["medians"]["direct"]
    for side, medians in report["medians"].items():
        cells = [medians[name] for name, _, _ in _COLUMNS]
        row = "".join(
            f"{'-' if cell is None else format(cell, style):>12}"
            for cell, (_, _, style) in zip(cells, _COLUMNS, strict=True)
        )
        print(f"{side:10}{row}{medians['alone_p50_ms'] - direct['alone_p50_ms']:>12.2f}")


def _arguments() -> argparse.Namespace:
    defaults = Counts()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sides", type=lambda text: text.split(","), default=["bare", "local", "upstream"])
    parser.add_argument("--alone", type=int, default=defaults.alone)
    parser.add_argument("--together", type=int, default=defaults.together)
    parser.add_argument("--streams", type=int, default=defaults.streams)
    parser.add_argument("--model", type=Path, help="folder with tokenizer and template; by default the 135M model's")
    parser.add_argument("--json", type=Path, default=DEFAULT_JSON)
    args = parser.parse_args()
    if args.model is None:
        from tests.support.real_model import model_folder

        args.model = model_folder()
    import os

    os.sched_setaffinity(0, cores()[1])
    return args


if __name__ == "__main__":
    sys.exit(main())
