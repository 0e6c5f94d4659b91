"""Cascade: decode rows of several requests read the blocks that begin all their tables once, as rows of one product.

What it leaves are partials in front of those of the rows' own splits; `paged_decode.merge_partials` joins them.

Source: Hydragen, Juravsky et al. 2024; cascade inference of FlashInfer, Ye et al. 2024.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from kernels.gpu.attend import attend, load_queries
from kernels.gpu.geometry import LOG2_E, cache_arguments, constants, num_warps, tile_rows, tile_tokens
from kernels.gpu.paged_decode import DecodeRows, Partials
from kernels.layout import LayerKV
from kernels.plan import IntArray, PagedBatch


@dataclass(frozen=True, slots=True, eq=False)
class SharedRun:
    """Decoding requests whose block tables begin alike."""

    requests: IntArray
    num_tokens: int
    """Of the run; a multiple of the block size, and no member's newest token lies in it."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedTiles:
    """Tiles of members of runs; tensors are int32, on the device."""

    max_splits: int
    """Of a run."""
    members: torch.Tensor
    """[num_members]: rows of `DecodeRows`, run after run."""
    firsts: torch.Tensor
    """[num_tiles]: first member."""
    counts: torch.Tensor
    """[num_tiles]: members."""
    num_tokens: torch.Tensor
    """[num_tiles]: tokens of the run."""


def find_shared_runs(batch: PagedBatch, block_size: int, *, min_tokens: int, min_requests: int) -> list[SharedRun]:
    """Group the decoding requests by their first blocks, and find how far each group's tables agree.

    Args:
        batch: of the step.
        block_size: tokens a block.
        min_tokens: shortest run worth a launch.
        min_requests: smallest group worth one.
    """
    min_blocks = max(1, -(-min_tokens // block_size))
    num_full = (batch.seq_lens - 1) // block_size  # the newest token is its request's own
    groups: dict[bytes, list[int]] = {}
    for request in np.flatnonzero((batch.query_lens == 1) & (num_full >= min_blocks)):
        groups.setdefault(batch.block_tables[request, :min_blocks].tobytes(), []).append(int(request))
    runs = []
    for members in groups.values():
        if len(members) < min_requests:
            continue
        requests = np.array(members, dtype=np.int64)
        tables = batch.block_tables[requests, : num_full[requests].min()]
        differs = (tables != tables[0]).any(axis=0)
        num_blocks = int(differs.argmax()) if differs.any() else tables.shape[1]
        runs.append(SharedRun(requests, num_blocks * block_size))
    return runs


def shared_prefix_decode(
    query: torch.Tensor,
    layer: LayerKV,
    tiles: SharedTiles,
    rows: DecodeRows,
    tables: torch.Tensor,
    *,
    scale: float,
    partials: Partials,
) -> None:
    """Attend from the members of each run to the run; mutates partials.

    Args:
        query: [num_tokens, num_heads, head_dim], contiguous.
        layer: of the cache.
        tiles: of at most `queries_a_tile` members.
        rows: all decode rows of the step.
        tables: [num_requests, max_blocks] int32.
        scale: factor on the scores.
        partials: of rows.
    """
    _shared_prefix_decode_kernel[(len(tiles.firsts), layer.key.shape[1], tiles.max_splits)](
        query, partials.outputs, partials.lse, rows.tokens, rows.requests, tiles.members, tiles.firsts, tiles.counts,
        tiles.num_tokens, tables, *cache_arguments(layer), tables.stride(0), rows.max_partials, rows.split_tokens,
        scale * LOG2_E,
        **constants(query, layer, min_rows=tile_rows(layer), block_n=tile_tokens(query.shape[2]), split_query=False),
        num_warps=num_warps(query.shape[2]), num_stages=3,
    )  # fmt: skip


@triton.jit
def _shared_prefix_decode_kernel(
    query_ptr, partial_ptr, lse_ptr, tokens_ptr, requests_ptr, members_ptr, firsts_ptr, counts_ptr, num_tokens_ptr,
    tables_ptr, key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, key_open_ptr,
    stride_table, stride_partial, split_tokens, scale,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    NUM_GROUPS: tl.constexpr, QUANTIZED: tl.constexpr, SPLIT_QUERY: tl.constexpr,
    FULL_PRECISION: tl.constexpr, R: tl.constexpr, BLOCK_N: tl.constexpr, PER_CHANNEL: tl.constexpr,
    HEADS_A_KV_HEAD: tl.constexpr,
):  # fmt: skip
    """Grid (tiles, KV heads, splits)."""
    tile = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    num_tokens = tl.load(num_tokens_ptr + tile)
    begin = split * split_tokens
    if begin >= num_tokens:
        return
    end = tl.minimum(begin + split_tokens, num_tokens)
    first = tl.load(firsts_ptr + tile)
    rows = tl.arange(0, R)
    live = rows < tl.load(counts_ptr + tile) * HEADS_A_KV_HEAD
    row = tl.load(members_ptr + first + rows // HEADS_A_KV_HEAD, mask=live, other=0).to(tl.int64)
    token = tl.load(tokens_ptr + row, mask=live, other=0).to(tl.int64)
    request = tl.load(requests_ptr + tl.load(members_ptr + first)).to(tl.int64)  # all members' tables begin alike
    num_heads = NUM_KV_HEADS * HEADS_A_KV_HEAD
    heads = kv_head * HEADS_A_KV_HEAD + rows % HEADS_A_KV_HEAD
    query, factor = load_queries(
        query_ptr,
        token * num_heads + heads,
        live,
        scale,
        HEAD_DIM,
        HEAD_PAD,
        NUM_GROUPS,
        SPLIT_QUERY,
        FULL_PRECISION,
    )
    whole = begin + (end - begin) // BLOCK_N * BLOCK_N
    result, lse = attend(
        query, factor, tl.zeros([R], tl.int32) + end, tables_ptr + request * stride_table, kv_head,
        begin, whole, end, 0, 0,
        key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, key_open_ptr, NUM_KV_HEADS, HEAD_DIM, HEAD_PAD, BLOCK_SIZE,
        NUM_GROUPS, QUANTIZED, SPLIT_QUERY, FULL_PRECISION, R, BLOCK_N, PER_CHANNEL,
    )  # fmt: skip
    channels = tl.arange(0, HEAD_PAD)
    inside = live[:, None] & (channels < HEAD_DIM)[None, :]
    slots = (row * num_heads + heads) * stride_partial + split
    tl.store(partial_ptr + slots[:, None] * HEAD_DIM + channels[None, :], result, mask=inside)
    tl.store(lse_ptr + slots, lse, mask=live)
