"""The numba backend's side of a step: torch tensors in and out, compiled kernels between, threads around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from kernels.cpu.attend import FEW, attend
from kernels.cpu.few_simd import ROWS
from kernels.cpu.many_simd import MOST_CHANNELS
from kernels.cpu.merge import merge
from kernels.cpu.schedule import Schedule, build_schedule, deal_out
from kernels.cpu.store import store
from kernels.cpu.threads import run
from kernels.layout import Array, LayerKV, as_array
from kernels.plan import IntArray, PagedBatch

_LOG2_E = 1.4426950408889634
_ROWS_A_THREAD = 32  # to store or merge: fewer are done before another thread has woken up


@dataclass(frozen=True, slots=True, eq=False)
class NumbaPlan:
    """Work items of one step, dealt out to as many threads as torch has."""

    slots: IntArray
    block_tables: IntArray
    schedule: Schedule
    work: list[IntArray]
    deterministic: bool
    precise: bool
    bad: torch.Tensor  # [num_tokens] bool

    @classmethod
    def build(
        cls, batch: PagedBatch, layer: LayerKV, *, deterministic: bool, cascade: bool, precise: bool
    ) -> NumbaPlan:
        """Cut the step into work.

        Raises:
            ValueError: a cache that is not on the CPU, per_channel, or a head_dim that is no multiple of 16 up to 256.
        """
        head_dim = layer.key.shape[-1]
        if layer.key.device.type != "cpu" or layer.format.per_channel_keys or head_dim % 16 or head_dim > MOST_CHANNELS:
            raise ValueError(
                f"numba: got {layer.format.name} on {layer.key.device.type} with heads of {head_dim}, "
                f"wanted a CPU, not per_channel, and a multiple of 16 up to {MOST_CHANNELS}; backend='torch' has no such limits"
            )
        schedule = build_schedule(batch, layer.block_size, deterministic=deterministic, cascade=cascade)
        work = deal_out(schedule, layer.block_size, layer.key.shape[1], torch.get_num_threads())
        bad = torch.zeros(len(batch.slot_mapping), dtype=torch.bool)
        slots, tables = (np.ascontiguousarray(array) for array in (batch.slot_mapping, batch.block_tables))
        return cls(slots, tables, schedule, work, deterministic, precise, bad)

    def store_kv(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        layer: LayerKV,
    ) -> torch.Tensor:
        """See `kernels.ops.store_kv`."""
        write, turned = self._writer(query, key, value, rotary, layer)
        write(layer)
        return turned

    def paged_attention(self, query: torch.Tensor, layer: LayerKV, scale: float) -> torch.Tensor:
        """See `kernels.ops.paged_attention`."""
        attend_to, out = self._reader(query.float() * (scale * _LOG2_E), query.dtype, layer)
        attend_to(layer)
        return out

    def bind(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        layer: LayerKV,
        scale: float,
    ) -> Callable[[LayerKV], torch.Tensor]:
        """See `kernels.ops.bind`."""
        write, turned = self._writer(query, key, value, rotary, layer)
        scaled = torch.empty(turned.shape)
        scaled_array, factor = scaled.numpy(), np.float32(scale * _LOG2_E)
        attend_to, out = self._reader(scaled, turned.dtype, layer)

        def store_and_attend(layer: LayerKV) -> torch.Tensor:
            write(layer)
            np.multiply(turned.float().numpy(), factor, out=scaled_array)
            attend_to(layer)
            return out

        return store_and_attend

    def _writer(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        layer: LayerKV,
    ) -> tuple[Callable[[LayerKV], None], torch.Tensor]:
        """Prepare storing into layers like this one; returns what stores, and where it leaves the rotated query."""
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        head_dim = query.shape[-1]
        inputs = (query, key, value)
        before = (
            *(_flat(tensor) for tensor in inputs),
            np.array([tensor.stride()[:2] for tensor in inputs]),
            *(as_array(table) for table in rotary),
            self.slots,
            head_dim & -head_dim if layer.format.rotated else 0,
            np.float32(layer.limit),
            _shape(layer),
        )
        after = as_array(out), self.bad.numpy()
        ranges = self._row_ranges()

        def write(layer: LayerKV) -> None:
            run([partial(store, first, last, *before, *layer.arrays, *after) for first, last in ranges])

        return write, out

    def _reader(
        self, scaled: torch.Tensor, dtype: torch.dtype, layer: LayerKV
    ) -> tuple[Callable[[LayerKV], None], torch.Tensor]:
        """Prepare attending to layers like this one; returns what attends, and where it leaves the output.

        Args:
            scaled: [num_tokens, num_heads, head_dim] fp32: queries times scale and log2(e).
            dtype: of the model.
            layer: any layer of this plan.
        """
        num_heads, head_dim = scaled.shape[1:]
        schedule, shape = self.schedule, _shape(layer)
        num_rows = len(schedule.row_tokens) * num_heads
        partial_results = np.empty((num_rows, head_dim), np.float32), *np.empty((2, num_rows), np.float32)
        arithmetic = _arithmetic(layer, dtype, shape[2], deterministic=self.deterministic, precise=self.precise)
        before = schedule.items, schedule.row_tokens, schedule.row_visible, self.block_tables, as_array(scaled)
        after = shape, *arithmetic, _rows_of_a_pass(num_heads // shape[0]), *partial_results
        out = torch.empty(scaled.shape, dtype=dtype)
        lists = schedule.starts, schedule.parts, schedule.row_items, schedule.items
        merged = (*lists, shape[0], *partial_results, as_array(out))
        merges = [partial(merge, first, last, *merged) for first, last in self._row_ranges()]

        def attend_to(layer: LayerKV) -> None:
            run([partial(attend, work, *before, layer.arrays, *after) for work in self.work])
            run(merges)

        return attend_to, out

    def bad_rows(self) -> torch.Tensor:
        """See `kernels.ops.bad_rows`."""
        return self.bad

    def _row_ranges(self) -> list[tuple[int, int]]:
        """The step's rows in as many runs as are worth a thread."""
        num_rows = len(self.slots)
        num_runs = max(1, min(torch.get_num_threads(), num_rows // _ROWS_A_THREAD))
        edges = [num_rows * index // num_runs for index in range(num_runs + 1)]
        return list(pairwise(edges))


def _arithmetic(
    layer: LayerKV, dtype: torch.dtype, num_groups: int, *, deterministic: bool, precise: bool
) -> tuple[Array, int, int]:
    """(kind, parts, few) as `attend` takes them."""
    head_dim = layer.key.shape[-1]
    if not layer.format.quantized:
        # sums of floats depend on their order, and `attend_few` has another one
        return np.empty((0, head_dim), np.float32), 1, 0 if deterministic else FEW
    parts = 2 if dtype == torch.float32 and precise else 1
    return np.empty((0, parts * head_dim // 2), np.int32), parts, 0 if head_dim // num_groups % 32 else FEW


def _rows_of_a_pass(group: int) -> tuple[int, ...]:
    """As many as take a group of query heads in the fewest passes; for numba as the length of a tuple, a type."""
    return (0,) * min(range(1, ROWS + 1), key=lambda rows: -(-group // rows))


def _flat(tensor: torch.Tensor) -> Array:
    """All elements from the first to the last in memory order, those between them included: one type for numba."""
    span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return as_array(tensor.as_strided((span,), (1,)))


def _shape(layer: LayerKV) -> tuple[int, int, int]:
    """(num_kv_heads, block_size, num_groups)."""
    _, num_kv_heads, block_size, _ = layer.key.shape
    return num_kv_heads, block_size, 1 if layer.value_scale is None else layer.value_scale.shape[-1]
