"""Attention of single rows: one program a row, KV head and split of the context, then a merge of the splits.

The query heads of one KV head are the rows of one product, so that keys and values are read once. Splits leave partial
outputs and the logarithms of their weights' sums; with one split and no shared prefix the output is written directly.

Source: FlashDecoding, Dao et al. 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from kernels.gpu.attend import attend, load_queries
from kernels.gpu.geometry import LOG2_E, cache_arguments, constants, decode_tokens, num_warps
from kernels.layout import LayerKV
from kernels.plan import IntArray

DETERMINISTIC_SPLIT_TOKENS = 512
SPLIT_STEP = 64
"""Splits are multiples of this: of every block size, and of a tile."""
DECODE_STAGES = 5
"""Block ids are read two tiles ahead of keys and values, and these two ahead of their use."""
_MIN_SPLIT_TOKENS = 256
_RESIDENT_PROGRAMS = 3  # an SM holds so many by registers, see benchmarks/aot.py
_TILES_A_PROGRAM = 3  # what start, first loads and merge of a program cost, in tiles; to be measured
_MERGED_AT_ONCE = 16


@dataclass(frozen=True, slots=True, eq=False)
class DecodeRows:
    """Rows that attend alone; tensors are [num_rows] int32, on the device."""

    split_tokens: int
    """Positions a split; a multiple of `SPLIT_STEP`."""
    max_splits: int
    """Of a row, its shared prefix not counted."""
    max_partials: int
    """Of a row, those of its shared prefix counted."""
    tokens: torch.Tensor
    """Row of the query."""
    requests: torch.Tensor
    """Row of the block tables."""
    starts: torch.Tensor
    """First position that is not covered by a shared prefix; a multiple of the block size."""
    limits: torch.Tensor
    """First position that the row does not see, above its start."""
    first_partials: torch.Tensor
    """Partials that a shared prefix leaves before this row's own splits."""
    num_partials: torch.Tensor
    """Those, and this row's own splits."""
    open_slots: torch.Tensor
    """per_channel only: the open block that a row's position is in."""


@dataclass(frozen=True, slots=True, eq=False)
class Partials:
    """Unmerged outputs: [num_rows, num_heads, max_partials, head_dim] and their [num_rows, num_heads, max_partials]."""

    outputs: torch.Tensor
    lse: torch.Tensor
    """Logarithms in base 2 of the sums of the weights."""

    @classmethod
    def empty(cls, query: torch.Tensor, rows: DecodeRows) -> Partials:
        """Allocate for these rows; what is never written is never read."""
        shape = (len(rows.tokens), query.shape[1], rows.max_partials)
        outputs = torch.empty((*shape, query.shape[2]), dtype=torch.float32, device=query.device)
        return cls(outputs, torch.empty(shape, dtype=torch.float32, device=query.device))


def choose_split_tokens(lengths: IntArray, num_kv_heads: int, num_multiprocessors: int) -> int:
    """Return the split that ends first: whole waves of programs, each a start-up and its tiles.

    Args:
        lengths: [num_rows], positions that each row, or tile of rows, reads.
        num_kv_heads: programs a split.
        num_multiprocessors: of the device.
    """
    longest = max(int(lengths.max()), 1)
    candidates = [_MIN_SPLIT_TOKENS]
    while candidates[-1] < longest:
        candidates.append(candidates[-1] * 2)

    def cost(split_tokens: int) -> int:
        programs = int(np.sum(-(-lengths // split_tokens))) * num_kv_heads
        waves = -(-programs // (num_multiprocessors * _RESIDENT_PROGRAMS))
        return waves * (min(split_tokens, longest) // SPLIT_STEP + _TILES_A_PROGRAM)

    return min(reversed(candidates), key=cost)


def paged_decode(
    query: torch.Tensor,
    layer: LayerKV,
    rows: DecodeRows,
    tables: torch.Tensor,
    *,
    scale: float,
    output: torch.Tensor,
    partials: Partials | None,
) -> None:
    """Attend from each row to [start, limit).

    Args:
        query: [num_tokens, num_heads, head_dim], contiguous.
        layer: of the cache.
        rows: of the query.
        tables: [num_requests, max_blocks] int32.
        scale: factor on the scores.
        output: like query; mutated when partials is None.
        partials: of these rows, mutated; None where every row has one split and no shared prefix.
    """
    outputs, lse = (None, None) if partials is None else (partials.outputs, partials.lse)
    _paged_decode_kernel[(len(rows.tokens), layer.key.shape[1], rows.max_splits)](
        query, output, outputs, lse, rows.tokens, rows.requests, rows.starts, rows.limits, rows.first_partials,
        rows.open_slots, tables, *cache_arguments(layer),
        tables.stride(0), rows.max_partials, rows.split_tokens, scale * LOG2_E,
        PARTIAL=partials is not None,
        **constants(query, layer, min_rows=16, block_n=decode_tokens(layer), split_query=True),
        num_warps=num_warps(query.shape[2]), num_stages=DECODE_STAGES,
    )  # fmt: skip


def merge_partials(partials: Partials, rows: DecodeRows, output: torch.Tensor) -> None:
    """Write each row's output, [num_tokens, num_heads, head_dim], from its partials."""
    _, num_heads, head_dim = output.shape
    _merge_partials_kernel[(len(rows.tokens), num_heads)](
        partials.outputs, partials.lse, output, rows.tokens, rows.num_partials, rows.max_partials,
        NUM_HEADS=num_heads, HEAD_DIM=head_dim, HEAD_PAD=triton.next_power_of_2(head_dim),
        PARTIALS_PAD=max(_MERGED_AT_ONCE, triton.next_power_of_2(rows.max_partials)), AT_ONCE=_MERGED_AT_ONCE,
        num_warps=4,
    )  # fmt: skip


@triton.jit
def _paged_decode_kernel(
    query_ptr, output_ptr, partial_ptr, lse_ptr, tokens_ptr, requests_ptr, starts_ptr, limits_ptr, first_partials_ptr,
    open_slots_ptr, tables_ptr, key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, key_open_ptr,
    stride_table, stride_partial, split_tokens, scale,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    NUM_GROUPS: tl.constexpr, QUANTIZED: tl.constexpr, SPLIT_QUERY: tl.constexpr,
    FULL_PRECISION: tl.constexpr, R: tl.constexpr, BLOCK_N: tl.constexpr, PER_CHANNEL: tl.constexpr,
    HEADS_A_KV_HEAD: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Grid (rows, KV heads, splits): rows run fastest, so that those with blocks in common meet in the L2 cache."""
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    limit = tl.load(limits_ptr + row)
    begin = tl.load(starts_ptr + row) + split * split_tokens
    if begin >= limit:
        return
    end = tl.minimum(begin + split_tokens, limit)
    token = tl.load(tokens_ptr + row).to(tl.int64)
    request = tl.load(requests_ptr + row).to(tl.int64)

    num_heads = NUM_KV_HEADS * HEADS_A_KV_HEAD
    first_row = token * num_heads + kv_head * HEADS_A_KV_HEAD
    twice = tl.arange(0, 2 * R if SPLIT_QUERY else R) % R
    query, factor = load_queries(
        query_ptr,
        first_row + twice,
        twice < HEADS_A_KV_HEAD,
        scale,
        HEAD_DIM,
        HEAD_PAD,
        NUM_GROUPS,
        SPLIT_QUERY,
        FULL_PRECISION,
    )
    whole = begin + (end - begin) // BLOCK_N * BLOCK_N
    open_slot = 0
    open_begin = end
    if PER_CHANNEL:
        open_slot = tl.load(open_slots_ptr + row).to(tl.int64)
        open_begin = (limit - 1) // BLOCK_SIZE * BLOCK_SIZE  # a row reads its own block as it is before it is quantized
    result, lse = attend(
        query, factor, tl.zeros([R], tl.int32) + end, tables_ptr + request * stride_table, kv_head, begin, whole, end,
        open_slot, open_begin,
        key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, key_open_ptr, NUM_KV_HEADS, HEAD_DIM, HEAD_PAD, BLOCK_SIZE,
        NUM_GROUPS, QUANTIZED, SPLIT_QUERY, FULL_PRECISION, R, BLOCK_N, PER_CHANNEL,
    )  # fmt: skip

    channels = tl.arange(0, HEAD_PAD)
    members = tl.arange(0, R)
    live = members < HEADS_A_KV_HEAD
    inside = live[:, None] & (channels < HEAD_DIM)[None, :]
    if PARTIAL:
        heads = kv_head * HEADS_A_KV_HEAD + members
        slots = (row * num_heads + heads) * stride_partial + tl.load(first_partials_ptr + row) + split
        tl.store(partial_ptr + slots[:, None] * HEAD_DIM + channels[None, :], result, mask=inside)
        tl.store(lse_ptr + slots, lse, mask=live)
    else:
        target = output_ptr + (first_row + members)[:, None] * HEAD_DIM + channels[None, :]
        tl.store(target, result.to(output_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _merge_partials_kernel(
    partial_ptr, lse_ptr, output_ptr, tokens_ptr, num_partials_ptr, stride_partial,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, PARTIALS_PAD: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Grid (rows, heads): output = sum of 2^(lse - max) * partial, over the sum of these weights."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    token = tl.load(tokens_ptr + row).to(tl.int64)
    num_partials = tl.load(num_partials_ptr + row)
    first = (row * NUM_HEADS + head) * stride_partial
    channels = tl.arange(0, HEAD_PAD)

    every = tl.arange(0, PARTIALS_PAD)
    highest = tl.max(tl.load(lse_ptr + first + every, mask=every < num_partials, other=float("-inf")), axis=0)
    total = 0.0
    result = tl.zeros([HEAD_PAD], tl.float32)
    for start in range(0, num_partials, AT_ONCE):
        index = start + tl.arange(0, AT_ONCE)
        live = index < num_partials
        weights = tl.exp2(tl.load(lse_ptr + first + index, mask=live, other=float("-inf")) - highest)
        rows = tl.load(
            partial_ptr + (first + index)[:, None] * HEAD_DIM + channels[None, :],
            mask=live[:, None] & (channels < HEAD_DIM)[None, :], other=0.0,
        )  # fmt: skip
        result += tl.sum(weights[:, None] * rows, axis=0)
        total += tl.sum(weights, axis=0)
    target = output_ptr + (token * NUM_HEADS + head) * HEAD_DIM + channels
    tl.store(target, (result / total).to(output_ptr.dtype.element_ty), mask=channels < HEAD_DIM)
