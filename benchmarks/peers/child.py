"""The two ends of a peer that runs in process: the benchmark starts it as a child of its own python.

The load goes in as JSON on standard input, the figures come back as the last line of standard output. The child's end
loads nothing but the standard library, for it runs in the peer's environment.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.loads import Load
from benchmarks.peers import SideMissingError
from benchmarks.timings import Figures, RequestTiming, figures

_ROOT = Path(__file__).parents[2]
_WARM_UP_TOKENS = 8


class BatchEngine(Protocol):
    """What a peer's child wraps."""

    def add(self, index: int, prompt: str, max_tokens: int) -> int:
        """Queue a prompt; returns its tokens. Answers must have exactly max_tokens, chosen greedily."""
        ...

    def step(self) -> dict[int, int]:
        """Go on until something is generated; returns the new tokens by index."""
        ...


@dataclass(frozen=True, slots=True)
class InProcess:
    """A side whose engine runs in a child process."""

    name: str
    module: str
    """With a `main` that calls `run_in_child`."""
    python: Path | None
    flag: str
    """That names the python."""
    model: Path
    """For the child to load."""
    tokenizer: Path
    """Folder with the chat template, which makes one string of a chat for sides that take strings."""
    limit_seconds: float
    """For start and load together; then it is stopped."""

    def run(self, load: Load, round_number: int) -> Figures:
        """See `Side`."""
        if self.python is None:
            raise SideMissingError(f"not installed: give {self.flag} PATH")
        from transformers import AutoTokenizer

        template = AutoTokenizer.from_pretrained(self.tokenizer).apply_chat_template
        prompts = [
            template(chat.messages, tokenize=False, add_generation_prompt=True) for chat in load.chats(round_number)
        ]
        work = {
            "model": str(self.model),
            "prompts": prompts,
            "concurrency": load.concurrency,
            "max_tokens": load.max_tokens,
        }
        try:
            done = subprocess.run(
                [self.python, "-m", self.module],
                input=json.dumps(work),
                cwd=_ROOT,
                capture_output=True,
                text=True,
                check=False,
                timeout=self.limit_seconds,
            )
        except subprocess.TimeoutExpired:
            raise SideMissingError(f"did not finish in {self.limit_seconds:.0f} s") from None
        if done.returncode:
            last = (done.stderr.strip() or "it said nothing").splitlines()[-1]
            raise RuntimeError(last[:200])
        return Figures(**json.loads(done.stdout.splitlines()[-1]))


def read_work() -> tuple[str, list[str], int, int]:
    """In the child: model, prompts, concurrency and max_tokens."""
    work = json.load(sys.stdin)
    return work["model"], work["prompts"], work["concurrency"], work["max_tokens"]


def run_in_child(engine: BatchEngine, prompts: Sequence[str], concurrency: int, max_tokens: int) -> None:
    """In the child: warm up, run the closed loop, print the figures."""
    closed_loop(engine, ["Say hello."], 1, _WARM_UP_TOKENS, first_index=len(prompts))
    start = time.perf_counter()
    timings = closed_loop(engine, prompts, concurrency, max_tokens)
    print(json.dumps(asdict(figures(timings, time.perf_counter() - start))))


def closed_loop(
    engine: BatchEngine, prompts: Sequence[str], concurrency: int, max_tokens: int, *, first_index: int = 0
) -> list[RequestTiming]:
    """In the child: as one prompt ends the next one starts; returns their times."""
    waiting = list(enumerate(prompts, first_index))
    started: dict[int, tuple[float, int]] = {}
    first: dict[int, float] = {}
    counts: dict[int, int] = {}
    timings: list[RequestTiming] = []
    while len(timings) < len(prompts):
        while waiting and len(started) < concurrency:
            index, prompt = waiting.pop(0)
            now = time.perf_counter()
            started[index] = (now, engine.add(index, prompt, max_tokens))
        for index, num_new in engine.step().items():
            now = time.perf_counter()
            first.setdefault(index, now)
            counts[index] = counts.get(index, 0) + num_new
            if counts[index] >= max_tokens:
                start, num_prompt_tokens = started.pop(index)
                timings.append(RequestTiming(first[index] - start, now - start, counts[index], num_prompt_tokens))
    return timings
