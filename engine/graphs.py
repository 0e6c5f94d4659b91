"""Decode steps from graphs: captured once for each size of batch, then replayed over buffers that never move.

A step of n requests runs in the smallest bucket of n rows or more. The rows beyond are a request of one token in a
scratch block that nobody else has, and their answers are thrown away.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.batch import ScheduledRequest
from engine.inputs import StepInputs
from engine.kv_cache import KVCache
from engine.models.interface import Model
from kernels import ops
from kernels.plan import IntArray, PagedBatch, StaticPlan

Answer = tuple[torch.Tensor, torch.Tensor]
"""Logits [bucket, vocab_size] and flags of bad rows [bucket]."""
Capture = Callable[[Callable[[], Answer]], Callable[[], Answer]]
"""Takes a step over fixed buffers, and returns what runs it again."""


@dataclass(frozen=True, slots=True)
class _Bucket:
    tokens: torch.Tensor  # [2, bucket] int64: input ids and positions
    plans: tuple[StaticPlan, ...]  # one a format
    run: Callable[[], Answer]


class DecodeGraphs:
    """The graphs of one model and cache."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        *,
        backend: str,
        max_num_seqs: int,
        max_blocks: int,
        scratch_block: int,
        capture: Capture,
    ) -> None:
        """Capture a graph for each bucket, the largest first, so that the others fit into its memory.

        Args:
            model: that runs.
            cache: that it reads and writes.
            backend: of the kernels.
            max_num_seqs: requests of the largest bucket.
            max_blocks: most blocks of a request.
            scratch_block: of the cache; belongs to no request.
            capture: `capture_cuda`, or `run_again` for a device without graphs.
        """
        self._model = model
        self._cache = cache
        self._backend = backend
        self._max_blocks = max_blocks
        self._scratch_block = scratch_block
        self._sizes = bucket_sizes(max_num_seqs)
        self._buckets = {size: self._capture(size, capture) for size in reversed(self._sizes)}

    def fits(self, requests: Sequence[ScheduledRequest]) -> bool:
        """Tell whether a step can be replayed: every request decodes one token and wants the next."""
        return len(requests) <= self._sizes[-1] and all(r.sample and r.num_new_tokens == 1 for r in requests)

    def run(self, inputs: StepInputs) -> Answer:
        """Run a step that fits.

        Returns:
            Logits [num_requests, vocab_size] in fp32 and bad rows [num_requests] bool; the next step overwrites them.
        """
        num_requests = len(inputs.input_ids)
        size = self._sizes[bisect.bisect_left(self._sizes, num_requests)]
        bucket = self._buckets[size]
        self._fill(bucket, size, inputs)
        logits, bad = bucket.run()
        return logits[:num_requests], bad[:num_requests]

    def _capture(self, size: int, capture: Capture) -> _Bucket:
        first = {layer.format: layer for layer in self._cache.layers}
        plans = {
            kind: ops.static_plan(size, self._max_blocks, layer, backend=self._backend) for kind, layer in first.items()
        }
        by_layer = [plans[layer.format] for layer in self._cache.layers]
        device = self._cache.layers[0].key.device
        tokens = torch.zeros(2, size, dtype=torch.int64, device=device)
        all_rows = torch.arange(size, device=device)

        def step() -> Answer:
            logits = self._model.forward(tokens[0], tokens[1], all_rows, self._cache, by_layer)
            return logits, torch.stack([ops.bad_rows(plan) for plan in plans.values()]).any(dim=0)

        bucket = _Bucket(tokens, tuple(plans.values()), step)
        nobody = np.zeros(0, dtype=np.int64)
        self._fill(
            bucket,
            size,
            StepInputs(nobody, nobody, nobody, nobody, PagedBatch(nobody, nobody, nobody, nobody[:, None])),
        )
        return _Bucket(tokens, bucket.plans, capture(step))

    def _fill(self, bucket: _Bucket, size: int, inputs: StepInputs) -> None:
        """Put a step into the buffers of a bucket, padding after it."""
        batch, num_padded = inputs.paged, size - len(inputs.input_ids)
        first_slot = self._scratch_block * self._cache.layers[0].block_size
        tables = np.full((size, max(batch.block_tables.shape[1], 1)), self._scratch_block, dtype=np.int64)
        tables[: len(batch.block_tables), : batch.block_tables.shape[1]] = batch.block_tables
        padded = PagedBatch(
            _padded(batch.slot_mapping, num_padded, first_slot),
            np.arange(size + 1),
            _padded(batch.seq_lens, num_padded, 1),
            tables,
        )
        for plan in bucket.plans:
            plan.update(padded)
        values = np.stack((_padded(inputs.input_ids, num_padded, 0), _padded(inputs.positions, num_padded, 0)))
        source = torch.from_numpy(values)
        bucket.tokens.copy_(source.pin_memory() if bucket.tokens.is_cuda else source, non_blocking=True)


def bucket_sizes(max_num_seqs: int) -> list[int]:
    """Return 1, 2, 4, 8 and then every eighth size, up to `max_num_seqs`: a padded row costs little, a graph memory."""
    sizes = [1, 2, 4, *range(8, max_num_seqs, 8)]
    return [*(size for size in sizes if size < max_num_seqs), max_num_seqs]


def run_again(step: Callable[[], Answer]) -> Callable[[], Answer]:
    """Stand in for a graph where there are none: the step runs once to be prepared, and again at every replay."""
    step()
    return step


def capture_cuda(step: Callable[[], Answer]) -> Callable[[], Answer]:
    """Capture a CUDA graph.

    Raises:
        RuntimeError: the step waits for the device, which no graph can.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # of torch
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()  # kernels are compiled and libraries set up outside the graph
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = step()

    def replay() -> Answer:
        graph.replay()
        return answer

    return replay


def _padded(values: IntArray, num_padded: int, value: int) -> IntArray:
    return np.concatenate((values, np.full(num_padded, value, dtype=np.int64)))
