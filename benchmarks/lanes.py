"""Short requests while long prompts arrive steadily: in two lanes, in one first-come lane, and alone.

python -m benchmarks.lanes [--seconds 20] [-- flags of serve]

Requests of 50 tokens come at a fixed pace; of 7,500-token prompts so many are always in the system: as one ends the
next one comes. The three runs share one process and one loaded model. TTFT counts from when a request was due, so that
a long step is not forgiven; one that is not served by the end of a run and some patience counts as served then.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.in_process import build_engine, config_of
from benchmarks.timings import quantile
from engine.batch import SchedulerOutput, StepOutput
from engine.config import EngineConfig
from engine.llm_engine import LLMEngine
from engine.messages import StepOutputs
from engine.model_runner import ModelRunner
from tests.support.engine_factory import add_request

SHORT_TOKENS, LONG_TOKENS = 50, 7500
SHORT_EVERY_SECONDS = 0.4
LONG_IN_SYSTEM = 3
ANSWER_TOKENS = 8
WARM_UP_SECONDS = 4.0
PATIENCE_SECONDS = 10.0
ONE_LANE = {"long_prefill_token_threshold": 0}
"""The scheduler's switch."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one run."""

    ttft: list[float]
    """Of the short requests, seconds."""
    long_tokens_per_second: float
    """Prompt tokens of long requests computed, over the time between warm-up and end."""

    @property
    def p99(self) -> float:
        """Of the TTFT."""
        return quantile(self.ttft, 0.99)


class Traffic:
    """Feeds an engine and notes what comes back."""

    def __init__(self, engine: LLMEngine, *, long_in_system: int, vocab_size: int) -> None:
        self._engine = engine
        self._long_in_system = long_in_system
        self._rng = np.random.default_rng(0)
        self._vocab_size = vocab_size
        self._live_long: set[str] = set()
        self._num_long = 0
        self.due: dict[str, float] = {}
        """Short requests without a token, and when they were due."""
        self.ttft: dict[str, float] = {}

    def send_short(self, due: float) -> None:
        """Add the short request that was due then."""
        request_id = f"short {due:.3f}"
        self.due[request_id] = due
        self._send(request_id, SHORT_TOKENS)

    def step(self) -> None:
        """Keep the long ones coming and run one step."""
        while len(self._live_long) < self._long_in_system:
            self._num_long += 1
            self._live_long.add(f"long {self._num_long}")
            self._send(f"long {self._num_long}", LONG_TOKENS)
        if not self._engine.has_work:
            time.sleep(0.001)
            return
        messages = self._engine.step()
        now = time.perf_counter()
        for output in (out for message in messages if isinstance(message, StepOutputs) for out in message.outputs):
            if (due := self.due.pop(output.request_id, None)) is not None:
                self.ttft[output.request_id] = now - due
            if output.finish_reason is not None:
                self._live_long.discard(output.request_id)

    def _send(self, request_id: str, num_tokens: int) -> None:
        prompt = self._rng.integers(100, self._vocab_size, num_tokens).tolist()
        add_request(self._engine, request_id, prompt, max_tokens=ANSWER_TOKENS, temperature=0, ignore_eos=True)


class LongTokenCounter:
    """A runner that counts what it computes of long prompts."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.num_tokens = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._runner, name)

    def execute(self, output: SchedulerOutput) -> StepOutput:
        """Count, and pass on."""
        long_parts = (part for part in output.requests if part.request_id.startswith("long"))
        self.num_tokens += sum(part.num_new_tokens for part in long_parts)
        return self._runner.execute(output)


def run(
    config: EngineConfig, runner: Any, *, seconds: float, long_in_system: int, warm_up: float = WARM_UP_SECONDS
) -> Outcome:
    """Run one mix for so long, after a warm-up in which the scheduler learns what a step costs."""
    counter = LongTokenCounter(runner)
    traffic = Traffic(build_engine(config, counter), long_in_system=long_in_system, vocab_size=runner.vocab_size)
    begin = time.perf_counter()
    counted_from, end = begin + warm_up, begin + warm_up + seconds
    next_due, num_before = begin, 0
    while (now := time.perf_counter()) < end:
        while next_due <= now:
            traffic.send_short(next_due)
            next_due += SHORT_EVERY_SECONDS
        traffic.step()
        if now < counted_from:
            num_before = counter.num_tokens
    throughput = (counter.num_tokens - num_before) / (time.perf_counter() - counted_from)
    while traffic.due and time.perf_counter() < end + PATIENCE_SECONDS:
        traffic.step()
    now = time.perf_counter()
    waits = traffic.ttft | {request_id: now - due for request_id, due in traffic.due.items()}
    counted = [wait for request_id, wait in waits.items() if float(request_id.split()[1]) >= counted_from]
    return Outcome(counted, throughput)


def main() -> int:
    """Run the three, print one table and the bars; 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run, after its warm-up")
    parser.add_argument("serve", nargs="*", help="flags for serve, after --")
    args = parser.parse_args()
    config = config_of(args.serve)
    runner = ModelRunner(config)
    one_lane = replace(config, scheduler=replace(config.scheduler, **ONE_LANE))
    cases = {"alone": (config, 0), "two lanes": (config, LONG_IN_SYSTEM), "one lane": (one_lane, LONG_IN_SYSTEM)}
    print(machine.describe(), *args.serve)
    print(f"{'':10} {'short':>6} {'TTFT p50':>9} {'p99':>7} {'long tok/s':>11}")
    outcomes = {}
    for name, (case, long_in_system) in cases.items():
        outcomes[name] = found = run(case, runner, seconds=args.seconds, long_in_system=long_in_system)
        p50, throughput = quantile(found.ttft, 0.5), found.long_tokens_per_second
        print(f"{name:10} {len(found.ttft):>6} {p50:>9.3f} {found.p99:>7.3f} {throughput:>11.0f}", flush=True)
    return int(not print_bars(outcomes["alone"], outcomes["two lanes"], outcomes["one lane"]))


def print_bars(alone: Outcome, lanes: Outcome, one: Outcome) -> bool:
    """Print the three ratios; returns whether all hold."""
    kept = lanes.long_tokens_per_second / one.long_tokens_per_second
    bars: Sequence[tuple[str, float, float, bool]] = (
        ("p99 TTFT, two lanes / alone", lanes.p99 / alone.p99, 4.0, lanes.p99 <= 4.0 * alone.p99),
        ("p99 TTFT, two lanes / one lane", lanes.p99 / one.p99, 0.3, lanes.p99 <= 0.3 * one.p99),
        ("throughput lost by the long ones", 1 - kept, 0.15, kept >= 0.85),
    )
    for what, value, bound, holds in bars:
        print(f"{what:34} {value:6.2f}  wanted <= {bound:4.2f}  {'holds' if holds else 'MISSES'}")
    return all(holds for *_, holds in bars)


if __name__ == "__main__":
    sys.exit(main())
