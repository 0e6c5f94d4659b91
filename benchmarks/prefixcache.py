"""Speed and memory of the prefix cache, beside chained SHA-256 over the same tokens.

python -m benchmarks.prefixcache [--blocks 1000000]
python -m benchmarks.prefixcache --sharing    the table of caps and reserves in docs/prefix-cache.md

Refuses to run when the tests of the cache are red. One process, one thread, plain CPython; medians of one run.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks import machine
from prefixcache import PrefixCache, PrefixCacheConfig, Prompt, Scope, hash_blocks, namespace
from tests.prefixcache.test_recorded_failure import serve as serve_sharers

NUM_TOKENS = 100_000
BLOCK_SIZE = 32
NUM_BLOCKS = NUM_TOKENS // BLOCK_SIZE
ROUNDS = 31
SCOPES = (Scope(namespace({"model": "benchmark"}, scope="public"), 0),)


def median(action: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Seconds."""
    times = []
    for _ in range(rounds):
        start = perf_counter()
        action()
        times.append(perf_counter() - start)
    return statistics.median(times)


def make_prompt(random: np.random.Generator, num_tokens: int) -> Prompt:
    tokens = random.integers(0, 50_000, num_tokens, dtype=np.int32)
    return Prompt(tokens, hash_blocks(tokens, block_size=BLOCK_SIZE, scopes=SCOPES, seed=0), SCOPES, hash_epoch=0)


def make_cache(num_blocks: int) -> PrefixCache:
    return PrefixCache(PrefixCacheConfig(num_blocks, block_size=BLOCK_SIZE, growth_reserve=0))


def serve(cache: PrefixCache, prompt: Prompt) -> tuple[float, float]:
    """Run one request through; returns the seconds that `admit` and `free` took."""
    match = cache.match(prompt)
    start = perf_counter()
    allocation = cache.admit(match, max_new_tokens=0)
    admitted = perf_counter() - start
    assert allocation is not None
    cache.commit(allocation.table, allocation.table.num_tokens)
    start = perf_counter()
    cache.free(allocation.table)
    return admitted, perf_counter() - start


def sha256_chain(tokens: np.ndarray) -> bytes:
    data, size = tokens.tobytes(), BLOCK_SIZE * 4
    parent, hashes = bytes(32), []
    for start in range(0, len(data) - size + 1, size):
        parent = hashlib.sha256(parent + data[start : start + size]).digest()
        hashes.append(parent)
    return b"".join(hashes)


def bench_hashing(random: np.random.Generator) -> None:
    tokens = random.integers(0, 50_000, NUM_TOKENS, dtype=np.int32)
    seconds = median(lambda: hash_blocks(tokens, block_size=BLOCK_SIZE, scopes=SCOPES, seed=1))
    report("hash 100,000 tokens, block 32, chained xxh3_128", seconds * 1e3, "ms", 1)
    report("  the same, chained SHA-256", median(lambda: sha256_chain(tokens)) * 1e3, "ms")


def bench_match(random: np.random.Generator) -> None:
    cache = make_cache(NUM_BLOCKS + 10)
    prompt = make_prompt(random, NUM_TOKENS + 1)
    serve(cache, prompt)
    times = []
    for _ in range(ROUNDS):
        start = perf_counter()
        match = cache.match(prompt)
        times.append(perf_counter() - start)
        assert match.num_cached_tokens == NUM_TOKENS
        match.release()
    report("verified match of 100,000 tokens, hashes given", statistics.median(times) * 1e3, "ms", 2)
    misses = [make_prompt(random, NUM_TOKENS) for _ in range(ROUNDS)]
    times = []
    for prompt in misses:
        start = perf_counter()
        match = cache.match(prompt)
        times.append(perf_counter() - start)
        assert match.num_cached_tokens == 0
        match.release()
    report("first-block miss of 100,000 tokens", statistics.median(times) * 1e6, "us", 20)


def bench_allocation(random: np.random.Generator) -> None:
    cache = make_cache(NUM_BLOCKS + 10)
    times = [serve(cache, make_prompt(random, NUM_TOKENS)) for _ in range(ROUNDS)][2:]  # the first two fill the pool
    assert cache.snapshot().counters["evicted_blocks"] >= NUM_BLOCKS * (ROUNDS - 2)
    admit, free = (statistics.median(column) / NUM_BLOCKS * 1e6 for column in zip(*times, strict=True))
    report("allocate + free a block, full pool, each evicts", admit + free, "us", 2)
    report("  of it allocate (evict, index, reference)", admit, "us")


def bench_chat(random: np.random.Generator) -> None:
    """Prompts of one application: 1,024 tokens in common, then 1,024 of their own, beside many that differ there."""
    cache = make_cache(4096)
    head = random.integers(0, 50_000, 1024, dtype=np.int32)
    times = []
    for _ in range(300):
        tail = random.integers(0, 50_000, 1024, dtype=np.int32)
        tail[0] = 7  # the nearest ones begin alike
        tokens = np.concatenate([head, tail])
        prompt = Prompt(tokens, hash_blocks(tokens, block_size=BLOCK_SIZE, scopes=SCOPES, seed=0), SCOPES, 0)
        start = perf_counter()
        serve(cache, prompt)
        times.append(perf_counter() - start)
    report("match, admit, commit and free a chat of 2,048 tokens", statistics.median(times[100:]) * 1e6, "us")


def bench_memory(random: np.random.Generator, num_blocks: int) -> None:
    blocks_a_prompt = 1000
    gc.collect()
    before = resident_bytes()
    cache = make_cache(num_blocks)
    for _ in range(num_blocks // blocks_a_prompt):
        serve(cache, make_prompt(random, blocks_a_prompt * BLOCK_SIZE))
    gc.collect()
    cached = cache.snapshot().cached_blocks
    assert cached == num_blocks // blocks_a_prompt * blocks_a_prompt
    size = (resident_bytes() - before) / cached - BLOCK_SIZE * 4
    report(f"memory a cached block beside its tokens, {cached:,} blocks", size, "bytes", 400)


def print_sharing_table() -> None:
    print("| cap | reserve | most at once | copied blocks | preemptions | stalled request steps | steps |")
    print("|---|---|---|---|---|---|---|")
    for growth_reserve in (256, 0):
        for cap in (0.25, 0.5, 0.75, 1.0):
            outcome, snapshot = serve_sharers(cap, growth_reserve, check_kv=False)
            copies = snapshot.counters["share_cap_copies"]
            columns = (outcome.max_running, copies, outcome.preemptions, outcome.stalls, outcome.num_steps)
            print(f"| {cap} | {growth_reserve or 'off'} | " + " | ".join(map(str, columns)) + " |")


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def report(name: str, value: float, unit: str, target: float | None = None) -> None:
    wanted = "" if target is None else f"   wanted <= {target:g}"
    print(f"{name:58} {value:9.2f} {unit}{wanted}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=1_000_000, help="pool of the memory measurement")
    parser.add_argument("--skip-tests", action="store_true")
    parser.add_argument("--sharing", action="store_true", help="print the table of caps and reserves, and nothing else")
    options = parser.parse_args()
    if options.sharing:
        print_sharing_table()
        return
    tests = [sys.executable, "-m", "pytest", "-q", "tests/prefixcache"]
    if not options.skip_tests and subprocess.run(tests, cwd=machine.ROOT, check=False).returncode:
        sys.exit("the tests of the prefix cache are red: no figures")
    random = np.random.default_rng(0)
    print(machine.describe())
    bench_hashing(random)
    bench_match(random)
    bench_allocation(random)
    bench_chat(random)
    bench_memory(random, options.blocks)


if __name__ == "__main__":
    main()
