"""A plan of decode rows whose tensors stay where they are, so that a captured graph reads what a step puts into them.

The geometry is that of the longest rows there may be: programs whose split begins behind their row's end stop at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kernels.gpu.paged_decode import DecodeRows, choose_split_tokens
from kernels.gpu.plan import TritonPlan, _num_multiprocessors
from kernels.layout import LayerKV
from kernels.plan import IntArray, PagedBatch


@dataclass(frozen=True, slots=True, eq=False)
class TritonStaticPlan:
    """See `kernels.plan.StaticPlan`."""

    plan: TritonPlan
    flat: torch.Tensor  # int32: what `plan.tables` and `plan.rows` are views of
    num_blocks: int  # of a row of the tables

    @classmethod
    def build(cls, num_requests: int, max_blocks: int, layer: LayerKV) -> TritonStaticPlan:
        """Lay out a plan of so many rows, of at most so many blocks each, with nothing in it yet."""
        device = layer.key.device
        longest = np.full(num_requests, max_blocks * layer.block_size, dtype=np.int64)
        split_tokens = choose_split_tokens(longest, layer.key.shape[1], _num_multiprocessors(device))
        max_splits = -(-int(longest[0]) // split_tokens)
        flat = torch.zeros(num_requests * (max_blocks + 7), dtype=torch.int32, device=device)
        rows = flat[num_requests * max_blocks :].view(7, num_requests)
        batch = PagedBatch(
            longest, np.arange(num_requests + 1), longest, np.zeros((num_requests, max_blocks), np.int64)
        )
        plan = TritonPlan(
            batch=batch,
            slots=torch.zeros(num_requests, dtype=torch.int64, device=device),
            tables=flat[: num_requests * max_blocks].view(num_requests, max_blocks),
            bad=torch.zeros(num_requests, dtype=torch.bool, device=device),
            alone=np.arange(num_requests),
            runs=(),
            rows=DecodeRows(split_tokens, max_splits, max_splits, *rows),
            open_blocks=None,
        )
        return cls(plan, flat, max_blocks)

    def update(self, batch: PagedBatch) -> None:
        """See `kernels.plan.StaticPlan.update`."""
        assert self.plan.rows is not None
        num_requests = len(batch.seq_lens)
        tables = np.zeros((num_requests, self.num_blocks), dtype=np.int64)
        tables[:, : batch.block_tables.shape[1]] = batch.block_tables
        rows, zeros = np.arange(num_requests), np.zeros(num_requests, dtype=np.int64)
        splits = -(-batch.seq_lens // self.plan.rows.split_tokens)
        _refill(self.flat, np.concatenate((tables.ravel(), rows, rows, zeros, batch.seq_lens, zeros, splits, zeros)))
        _refill(self.plan.slots, batch.slot_mapping)
        self.plan.bad.zero_()

    def store_kv(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        layer: LayerKV,
    ) -> torch.Tensor:
        """See `kernels.ops.store_kv`."""
        return self.plan.store_kv(query, key, value, rotary, layer)

    def paged_attention(self, query: torch.Tensor, layer: LayerKV, scale: float) -> torch.Tensor:
        """See `kernels.ops.paged_attention`."""
        return self.plan.paged_attention(query, layer, scale)

    def bad_rows(self) -> torch.Tensor:
        """See `kernels.ops.bad_rows`."""
        return self.plan.bad


def _refill(target: torch.Tensor, values: IntArray) -> None:
    source = torch.from_numpy(values).to(target.dtype)
    target.copy_(source.pin_memory() if target.is_cuda else source, non_blocking=True)
