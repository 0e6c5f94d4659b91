"""What `--deterministic` costs: the same steps with it and without, side by side, in one process.

python -m benchmarks.deterministic [--rounds 9]
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time

import numpy as np

from benchmarks import machine
from benchmarks.in_process import config_of
from engine.batch import ScheduledRequest, SchedulerOutput
from engine.config import EngineConfig
from engine.messages import SamplingParams
from engine.model_runner import ModelRunner

_CONTEXT, _SHARED, _BATCH, _CHUNK = 1000, 896, 8, 512


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    print(machine.describe())
    print(f"{'weights':10} {'step':34} {'plain ms':>9} {'deterministic':>14} {'ratio':>6}")
    for quantization, dtype in (("int8", "auto"), ("none", "bfloat16")):
        plain = dataclasses.replace(config_of([]), quantization=quantization, dtype=dtype)
        runners = [ModelRunner(config) for config in (plain, _deterministic(plain))]
        for what, step in (("decode of 8 behind a shared prompt", _decode()), ("prefill of 512", _prefill())):
            times = [[_seconds(runner, step) for runner in runners] for _ in range(rounds + 1)][1:]
            medians = [1000 * statistics.median(column) for column in zip(*times, strict=True)]
            print(f"{quantization:10} {what:34} {medians[0]:9.1f} {medians[1]:14.1f} {medians[1] / medians[0]:6.2f}")


def _deterministic(config: EngineConfig) -> EngineConfig:
    return dataclasses.replace(config, scheduler=dataclasses.replace(config.scheduler, deterministic=True))


def _seconds(runner: ModelRunner, step: SchedulerOutput) -> float:
    start = time.perf_counter()
    runner.execute(step)
    return time.perf_counter() - start


def _decode() -> SchedulerOutput:
    shared = list(range(_SHARED // 32))
    own = [list(range(100 + 8 * row, 108 + 8 * row)) for row in range(_BATCH)]
    return SchedulerOutput([_request(str(row), _CONTEXT, 1, shared + blocks) for row, blocks in enumerate(own)])


def _prefill() -> SchedulerOutput:
    return SchedulerOutput([_request("prompt", 0, _CHUNK, list(range(_CHUNK // 32)))])


def _request(name: str, computed: int, new: int, block_ids: list[int]) -> ScheduledRequest:
    return ScheduledRequest(
        request_id=name,
        token_ids=np.full(new, 7, np.int32),
        num_computed_tokens=computed,
        block_ids=block_ids,
        sampling=SamplingParams(max_tokens=1, temperature=0.0),
        seed=0,
        sample=True,
    )


if __name__ == "__main__":
    main()
