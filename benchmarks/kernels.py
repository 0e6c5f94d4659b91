"""Attention on the CPU: the numba kernel on int8 and 16-bit KV beside torch's SDPA, plain beside cascade, and prefill.

python -m benchmarks.kernels [--rounds 41] [--threads N]

One layer of SmolLM2's shape: 9 query heads, 3 KV heads, head_dim 64, block 32; 16 sequences of 2,048 tokens. torch reads
dense, contiguous keys and values of its own, which is more than a paged cache could offer it. Prefill is the last chunk
of 512 rows of a prompt of 2,048, beside the torch backend on the same cache. All candidates run in
turns, so that a busy neighbour slows them alike; medians, of one process. Refuses to run when the kernel tests are red.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as in the engine: a waiting torch thread must not hold a core

import numpy as np
import torch
from torch.nn import functional

from benchmarks import machine
from kernels import ops
from kernels.layout import LayerKV
from kernels.plan import PagedBatch
from tests.kernels.cases import Shape, make_layer

NUM_SEQS, NUM_TOKENS, COMMON_TOKENS = 16, 2048, 1024
SUFFIX_TOKENS = 64
CHUNK = 512
SHAPE = Shape(num_heads=9, num_kv_heads=3, head_dim=64, block_size=32, num_blocks=NUM_SEQS * NUM_TOKENS // 32)


def decode_batch(seq_len: int, common_tokens: int = 0) -> PagedBatch:
    """One new token for each of 16 sequences, their blocks scattered, the leading ones in common."""
    size = SHAPE.block_size
    num_common, num_blocks = common_tokens // size, -(-seq_len // size)
    ids = np.random.default_rng(0).permutation(SHAPE.num_blocks)
    common, own = ids[:num_common], ids[num_common : num_common + NUM_SEQS * (num_blocks - num_common)]
    tables = np.concatenate((np.tile(common, (NUM_SEQS, 1)), own.reshape(NUM_SEQS, -1)), axis=1)
    last = seq_len - 1
    return PagedBatch(
        tables[:, last // size] * size + last % size, np.arange(NUM_SEQS + 1), np.full(NUM_SEQS, seq_len), tables
    )


def numba_decode(
    layer: LayerKV, batch: PagedBatch, dtype: torch.dtype, *, cascade: bool = True
) -> Callable[[], object]:
    plan = ops.plan_step(batch, layer, backend="numba", cascade=cascade)
    query = torch.randn(NUM_SEQS, SHAPE.num_heads, SHAPE.head_dim).to(dtype)
    return lambda: ops.paged_attention(query, layer, plan, scale=SHAPE.head_dim**-0.5)


def prefill(layer: LayerKV, backend: str) -> Callable[[], object]:
    tables = np.random.default_rng(0).permutation(SHAPE.num_blocks)[None, : NUM_TOKENS // SHAPE.block_size]
    positions = np.arange(NUM_TOKENS - CHUNK, NUM_TOKENS)
    slots = tables[0, positions // SHAPE.block_size] * SHAPE.block_size + positions % SHAPE.block_size
    plan = ops.plan_step(
        PagedBatch(slots, np.array([0, CHUNK]), np.array([NUM_TOKENS]), tables), layer, backend=backend
    )
    query = torch.randn(CHUNK, SHAPE.num_heads, SHAPE.head_dim).to(torch.bfloat16)
    return lambda: ops.paged_attention(query, layer, plan, scale=SHAPE.head_dim**-0.5)


def sdpa_decode(dtype: torch.dtype) -> Callable[[], object]:
    query = torch.randn(NUM_SEQS, SHAPE.num_heads, 1, SHAPE.head_dim).to(dtype)
    keys, values = (torch.randn(NUM_SEQS, SHAPE.num_kv_heads, NUM_TOKENS, SHAPE.head_dim).to(dtype) for _ in range(2))
    return lambda: functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)


def measure(candidates: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each, run in turns."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for round_index in range(rounds + 2):  # two to compile and to fault the memory in
        for name, candidate in candidates.items():
            start = perf_counter()
            candidate()
            if round_index >= 2:
                times[name].append(perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--skip-tests", action="store_true")
    options = parser.parse_args()
    tests = [sys.executable, "-m", "pytest", "-q", "tests/kernels"]
    if not options.skip_tests and subprocess.run(tests, cwd=machine.ROOT, check=False).returncode:
        sys.exit("the tests of the kernels are red: no figures")
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    print(f"{machine.describe()}, {options.threads} threads, medians of {options.rounds}")
    int8 = make_layer("int8/per_token", SHAPE, torch.bfloat16)
    bf16 = make_layer("auto", SHAPE, torch.bfloat16)
    whole = decode_batch(NUM_TOKENS)
    shared = decode_batch(COMMON_TOKENS + SUFFIX_TOKENS, COMMON_TOKENS)
    half_shared = decode_batch(NUM_TOKENS, COMMON_TOKENS)
    candidates = {
        "numba int8": numba_decode(int8, whole, torch.bfloat16),
        "numba bf16": numba_decode(bf16, whole, torch.bfloat16),
        "torch SDPA fp32": sdpa_decode(torch.float32),
        "torch SDPA bf16": sdpa_decode(torch.bfloat16),
        "1,024 common + 64, plain": numba_decode(int8, shared, torch.bfloat16, cascade=False),
        "1,024 common + 64, cascade": numba_decode(int8, shared, torch.bfloat16),
        "1,024 common + 1,024, plain": numba_decode(int8, half_shared, torch.bfloat16, cascade=False),
        "1,024 common + 1,024, cascade": numba_decode(int8, half_shared, torch.bfloat16),
        "prefill, numba int8": prefill(int8, "numba"),
        "prefill, numba bf16": prefill(bf16, "numba"),
        "prefill, torch int8": prefill(int8, "torch"),
        "prefill, torch bf16": prefill(bf16, "torch"),
    }
    seconds = measure(candidates, options.rounds)
    for name, taken in seconds.items():
        print(f"{name:34} {taken * 1e3:8.2f} ms")
    codes = 2 * NUM_SEQS * NUM_TOKENS * SHAPE.num_kv_heads * SHAPE.head_dim
    torch_best = min(seconds["torch SDPA fp32"], seconds["torch SDPA bf16"])
    for name, ratio, wanted in (
        ("faster torch SDPA / numba int8", torch_best / seconds["numba int8"], 3.0),
        ("numba bf16 / numba int8", seconds["numba bf16"] / seconds["numba int8"], 1.25),
        ("G codes/s a core, int8", codes / seconds["numba int8"] / options.threads / 1e9, 5.0),
        (
            "plain / cascade, suffix 64",
            seconds["1,024 common + 64, plain"] / seconds["1,024 common + 64, cascade"],
            2.0,
        ),
        (
            "plain / cascade, suffix 1,024 (at most 2)",
            seconds["1,024 common + 1,024, plain"] / seconds["1,024 common + 1,024, cascade"],
            None,
        ),
        ("prefill int8, torch / numba", seconds["prefill, torch int8"] / seconds["prefill, numba int8"], None),
        ("prefill bf16, torch / numba", seconds["prefill, torch bf16"] / seconds["prefill, numba bf16"], None),
    ):
        print(f"{name:42} {ratio:6.2f}" + (f"   wanted >= {wanted:g}" if wanted else ""))


if __name__ == "__main__":
    main()
