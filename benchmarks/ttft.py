"""TTFT of a cold request against a warm one that shares its 1,000-token system prompt, through the whole stack.

python -m benchmarks.ttft [--pairs 5] [--words 1000] [-- serve flags]

Starts `prefixgate serve` itself. Each pair has a system prompt of its own; prints one table, the medians and their
ratio, machine and commit.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time

import httpx

from benchmarks import machine
from tests.support.server import Server

WORDS = ["order", "parcel", "refund", "customer", "account", "delivery", "policy", "agent", "reply", "invoice", "city"]


def ttft(url: str, model: str, system: str, user: str) -> tuple[float, dict]:
    """Seconds to the first text, and the usage."""
    body = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": 8,
        "ignore_eos": True,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
    }
    first, usage, start = None, {}, time.perf_counter()
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=300) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if first is None and event["choices"] and event["choices"][0]["delta"].get("content"):
                first = time.perf_counter() - start
            usage = event.get("usage") or usage
    assert first is not None
    return first, usage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--words", type=int, default=1000)
    parser.add_argument("serve", nargs="*", help="flags for serve, after --")
    args = parser.parse_args()
    print(machine.describe())
    print(f"{'pair':>4} {'prompt':>7} {'cold s':>8} {'cached':>7} {'warm s':>8} {'cached':>7}")
    cold_times, warm_times = [], []
    with Server(args.serve) as server:
        model = httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"]
        ttft(server.url, model, "You are helpful.", "Warm up.")
        for pair in range(args.pairs):
            system = " ".join(random.Random(pair).choices(WORDS, k=args.words))
            cold, cold_usage = ttft(server.url, model, system, "Where is my parcel?")
            warm, warm_usage = ttft(server.url, model, system, "I want a refund, please.")
            cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in (cold_usage, warm_usage)]
            print(f"{pair:>4} {warm_usage['prompt_tokens']:>7} {cold:>8.3f} {cached[0]:>7} {warm:>8.3f} {cached[1]:>7}")
            cold_times.append(cold)
            warm_times.append(warm)
    cold, warm = statistics.median(cold_times), statistics.median(warm_times)
    print(f"median cold {cold:.3f} s, warm {warm:.3f} s, warm / cold = {warm / cold:.3f}")


if __name__ == "__main__":
    main()
