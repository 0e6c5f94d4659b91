"""What grammars cost: the mask of a token, and tokens per second of the served model with and without one, by turns.

`python -m benchmarks.structured_output`
"""

from __future__ import annotations

import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np

from benchmarks.machine import describe
from engine.grammars import Grammar, load_grammars, mask_bytes
from gateway.structure.grammar import schema_grammar
from tests.e2e.structured_cases import SCHEMAS
from tests.support.real_model import MODEL, model_folder
from tests.support.server import Server

VOCAB_SIZE, END = 49_152, 2
NUM_WALKS, NUM_TOKENS, NUM_ROUNDS = 5, 160, 6
STREAMS = (1, 8)
LONG = {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}, "minItems": 500}


def mask_seconds() -> tuple[list[float], list[float]]:
    """CPU time of mask and acceptance of each token of random walks, and the wait for each compiled schema."""
    grammars = load_grammars(model_folder(), vocab_size=VOCAB_SIZE, eos_token_ids=frozenset({END}))
    assert grammars is not None
    mask = np.zeros(mask_bytes(VOCAB_SIZE), dtype=np.uint8)
    masks, waits = [], []
    for _, schema in SCHEMAS.values():
        text, began = schema_grammar(schema), time.perf_counter()
        grammar = grammars.begin("r", text)
        while grammar is None:
            time.sleep(0.0002)
            grammar = grammars.take_ready().get("r")
        waits.append(time.perf_counter() - began)
        for seed in range(NUM_WALKS):
            draws = random.Random(seed)
            grammar = grammars.begin("r", text)
            assert isinstance(grammar, Grammar)
            token = -1
            while token != END:
                began = time.thread_time()
                grammar.fill_mask(mask)
                filled = time.thread_time()
                token = int(draws.choice(np.unpackbits(mask, bitorder="little").nonzero()[0]))
                chosen = time.thread_time()
                grammar.accept(token)
                masks.append(time.thread_time() - chosen + filled - began)
    grammars.close()
    return masks, waits


def tokens_per_second(server: Server, num_streams: int, **fields: Any) -> float:
    """Tokens of all answers by the time that they took together."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "List people in JSON."}],
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
        **fields,
    }
    began = time.perf_counter()
    with ThreadPoolExecutor(num_streams) as threads:
        post = lambda _: httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300).json()  # noqa: E731
        answers = list(threads.map(post, range(num_streams)))
    return sum(answer["usage"]["completion_tokens"] for answer in answers) / (time.perf_counter() - began)


def main() -> None:
    print(describe())
    masks, waits = mask_seconds()
    micros = np.array(masks) * 1e6
    print(f"mask of a token: mean {micros.mean():.0f} us, median {np.median(micros):.0f}, ", end="")
    print(f"p99 {np.percentile(micros, 99):.0f}, {len(masks)} tokens of {len(SCHEMAS)} schemas")
    print(f"a new schema waits {statistics.median(waits) * 1e3:.0f} ms (median), {max(waits) * 1e3:.0f} at most")
    held = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": LONG}}}
    with Server() as server:
        for num_streams in STREAMS:
            tokens_per_second(server, num_streams, **held)
            pairs = [
                (tokens_per_second(server, num_streams), tokens_per_second(server, num_streams, **held))
                for _ in range(NUM_ROUNDS)
            ]
            free, bound = (statistics.median(side) for side in zip(*pairs, strict=True))
            ratio = statistics.median(bound / free for free, bound in pairs)
            print(f"{num_streams} streams: {free:.0f} tokens/s free, {bound:.0f} by a schema, paired {ratio:.3f}")


if __name__ == "__main__":
    main()
