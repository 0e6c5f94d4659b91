"""What a decode step costs: against batch and context, with a fitted line, and how much of it is Python.

python -m benchmarks.step_cost [--rounds 5] [--plot FILE.png] [-- flags of serve]

Every request has blocks of its own, so nothing is read twice for being shared; batches whose contexts do not fit into the
pool together are left out and said so. The fit is seconds = a + b * batch + c * (tokens of context of all requests).
`--plot` needs the extra `plot`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.in_process import build_engine, config_of
from engine.batch import ScheduledRequest, SchedulerOutput
from engine.config import EngineConfig
from engine.messages import SamplingParams
from engine.model_runner import ModelRunner
from tests.support.engine_factory import add_request

BATCHES = (1, 2, 4, 8, 16, 32)
CONTEXTS = (128, 512, 1024, 2048, 4096, 7500)
OVERHEAD_BATCH = 16
OVERHEAD_BOUND = 0.002
"""Seconds of Python in a step of that batch."""
_OVERHEAD_STEPS = 40
_PROMPT_TOKENS = 128

Seconds = dict[tuple[int, int], float]
"""(batch, context) -> seconds of a step."""


def measure(runner: ModelRunner, rounds: int) -> Seconds:
    """Return the medians of interleaved decode steps, after one of each to warm up."""
    block_size = runner.config.cache.block_size
    steps = {
        (batch, context): decode_step(batch, context, block_size)
        for batch in BATCHES
        for context in CONTEXTS
        if batch * (context // block_size + 1) <= runner.num_blocks and context < runner.max_model_len
    }
    times: dict[tuple[int, int], list[float]] = {key: [] for key in steps}
    for number in range(rounds + 1):
        for key, step in steps.items():
            start = time.perf_counter()
            runner.execute(step)
            if number:
                times[key].append(time.perf_counter() - start)
    return {key: statistics.median(found) for key, found in times.items()}


def decode_step(batch: int, context: int, block_size: int) -> SchedulerOutput:
    """One new token for each of `batch` requests behind `context` others, in shuffled blocks of their own."""
    blocks_each = context // block_size + 1
    block_ids = np.random.default_rng(0).permutation(batch * blocks_each).reshape(batch, blocks_each).tolist()
    return SchedulerOutput(
        [
            ScheduledRequest(
                request_id=str(index),
                token_ids=np.array([7], dtype=np.int32),
                num_computed_tokens=context,
                block_ids=ids,
                sampling=SamplingParams(max_tokens=1, temperature=0.0),
                seed=0,
                sample=True,
            )
            for index, ids in enumerate(block_ids)
        ]
    )


def fit(seconds: Seconds) -> tuple[np.ndarray[Any, Any], float]:
    """Return (a, b, c) of the fit, by relative errors, and the largest relative error."""
    keys = np.array(list(seconds), dtype=float)
    measured = np.array(list(seconds.values()))
    terms = np.stack([np.ones(len(keys)), keys[:, 0], keys.prod(axis=1)], axis=1)
    weights = 1 / measured
    constants = np.linalg.lstsq(terms * weights[:, None], measured * weights, rcond=None)[0]
    return constants, float(np.abs(terms @ constants / measured - 1).max())


def python_seconds(config: EngineConfig, runner: ModelRunner) -> tuple[float, float]:
    """Return the medians of a whole engine step at batch 16, and of its part outside forward pass and sampler."""
    engine = build_engine(config, runner)
    for index in range(OVERHEAD_BATCH):
        prompt = np.random.default_rng(index).integers(100, runner.vocab_size, _PROMPT_TOKENS).tolist()
        add_request(engine, str(index), prompt, max_tokens=10 * _OVERHEAD_STEPS, temperature=0, ignore_eos=True)
    computing = Stopwatch()
    computing.wrap(runner._model, "forward")
    computing.wrap(runner._sampler, "sample")
    while engine.scheduler.num_waiting or engine.scheduler.counters.generated_tokens < 2 * OVERHEAD_BATCH:
        engine.step()
    whole, outside = [], []
    for _ in range(_OVERHEAD_STEPS):
        computing.seconds, start = 0.0, time.perf_counter()
        engine.step()
        whole.append(time.perf_counter() - start)
        outside.append(whole[-1] - computing.seconds)
    return statistics.median(whole), statistics.median(outside)


class Stopwatch:
    """Adds up the time spent in methods."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wrap(self, owner: object, name: str) -> None:
        """Time this method of this object from now on."""
        method: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        setattr(owner, name, timed)


def print_table(seconds: Mapping[tuple[int, int], float]) -> None:
    """Milliseconds by batch and context."""
    print("ms a step" + "".join(f"{context:>9}" for context in CONTEXTS))
    for batch in BATCHES:
        cells = (seconds.get((batch, context)) for context in CONTEXTS)
        print(f"{batch:>9}" + "".join(f"{'pool' if cell is None else f'{1e3 * cell:.1f}':>9}" for cell in cells))
    if len(seconds) < len(BATCHES) * len(CONTEXTS):
        print("pool: does not fit into the KV pool; see --kv-cache-memory")


def plot(seconds: Seconds, constants: np.ndarray[Any, Any], path: Path) -> None:
    """Draw the measured steps and the fitted lines."""
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=(7, 4.5), layout="constrained")).subplots()
    for batch in BATCHES:
        contexts = [context for context in CONTEXTS if (batch, context) in seconds]
        points = axes.plot(
            contexts, [1e3 * seconds[batch, context] for context in contexts], "o", label=f"batch {batch}"
        )
        lines = [1e3 * constants @ (1, batch, batch * context) for context in contexts]
        axes.plot(contexts, lines, "-", color=points[0].get_color(), linewidth=1)
    axes.set(xlabel="tokens of context, each", ylabel="ms a decode step", ylim=(0, None))
    axes.legend()
    axes.set_title(machine.describe(), fontsize=7)
    figure.savefig(path, dpi=120)


def main() -> int:
    """Measure, fit, print; 1 if the Python part is over its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plot", type=Path, metavar="FILE")
    parser.add_argument("serve", nargs="*", help="flags for serve, after --")
    args = parser.parse_args()
    config = config_of(args.serve)
    runner = ModelRunner(config)
    print(machine.describe(), *args.serve)
    seconds = measure(runner, args.rounds)
    print_table(seconds)
    constants, worst = fit(seconds)
    a, b, c = constants
    print(
        f"fit: {1e3 * a:.2f} ms + {1e3 * b:.3f} ms * batch + {1e9 * c:.1f} ns * tokens of context; off by at most {worst:.0%}"
    )
    whole, outside = python_seconds(config, runner)
    holds = outside <= OVERHEAD_BOUND
    print(
        f"outside forward pass and sampler: {1e3 * outside:.2f} of {1e3 * whole:.1f} ms a step at batch "
        f"{OVERHEAD_BATCH}, wanted <= {1e3 * OVERHEAD_BOUND:g} ms: {'holds' if holds else 'MISSES'}"
    )
    if args.plot:
        plot(seconds, constants, args.plot)
    return int(not holds)


if __name__ == "__main__":
    sys.exit(main())
