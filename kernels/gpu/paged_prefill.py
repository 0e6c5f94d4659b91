"""Attention of a chunk: tiles of neighbouring rows of one request against its cache, the chunk itself included.

The chunk is quantized before it is read, so a row sees the same bytes wherever the chunk begins. A tile's rows are
(token, query head of one KV head), so that keys and values are read once for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.gpu.attend import attend, load_queries
from kernels.gpu.geometry import LOG2_E, cache_arguments, constants, num_warps, tile_rows, tile_tokens
from kernels.layout import LayerKV


@dataclass(frozen=True, slots=True, eq=False)
class PrefillTiles:
    """[num_tiles] int32 each, on the device."""

    requests: torch.Tensor
    """Row of the block tables."""
    tokens: torch.Tensor
    """First row of the query."""
    positions: torch.Tensor
    """Position of that row in its request."""
    counts: torch.Tensor
    """Tokens of the tile."""


def paged_prefill(
    query: torch.Tensor,
    layer: LayerKV,
    tiles: PrefillTiles,
    tables: torch.Tensor,
    *,
    scale: float,
    output: torch.Tensor,
) -> None:
    """Attend from each row of the tiles to the positions up to its own; mutates output, which is like query.

    Args:
        query: [num_tokens, num_heads, head_dim], contiguous.
        layer: of the cache.
        tiles: of at most `queries_a_tile` tokens.
        tables: [num_requests, max_blocks] int32.
        scale: factor on the scores.
        output: like query.
    """
    _paged_prefill_kernel[(len(tiles.tokens), layer.key.shape[1])](
        query, output, tiles.requests, tiles.tokens, tiles.positions, tiles.counts, tables, *cache_arguments(layer),
        tables.stride(0), scale * LOG2_E,
        **constants(query, layer, min_rows=tile_rows(layer), block_n=tile_tokens(query.shape[2]), split_query=False),
        num_warps=num_warps(query.shape[2]), num_stages=3,
    )  # fmt: skip


@triton.jit
def _paged_prefill_kernel(
    query_ptr, output_ptr, requests_ptr, tokens_ptr, positions_ptr, counts_ptr, tables_ptr,
    key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, key_open_ptr, stride_table, scale,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    NUM_GROUPS: tl.constexpr, QUANTIZED: tl.constexpr, SPLIT_QUERY: tl.constexpr,
    FULL_PRECISION: tl.constexpr, R: tl.constexpr, BLOCK_N: tl.constexpr, PER_CHANNEL: tl.constexpr,
    HEADS_A_KV_HEAD: tl.constexpr,
):  # fmt: skip
    """Grid (tiles, KV heads)."""
    tile = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    request = tl.load(requests_ptr + tile).to(tl.int64)
    first_position = tl.load(positions_ptr + tile)
    count = tl.load(counts_ptr + tile)
    rows = tl.arange(0, R)
    live = rows < count * HEADS_A_KV_HEAD
    member = rows // HEADS_A_KV_HEAD
    num_heads = NUM_KV_HEADS * HEADS_A_KV_HEAD
    heads = kv_head * HEADS_A_KV_HEAD + rows % HEADS_A_KV_HEAD
    query_rows = (tl.load(tokens_ptr + tile).to(tl.int64) + member) * num_heads + heads

    end = first_position + count
    limits = tl.minimum(first_position + member + 1, end)  # rows that are padding see what the last one sees
    whole = (first_position + 1) // BLOCK_N * BLOCK_N  # the first row, which sees least, sees all of these tiles
    query, factor = load_queries(
        query_ptr, query_rows, live, scale, HEAD_DIM, HEAD_PAD, NUM_GROUPS, SPLIT_QUERY, FULL_PRECISION
    )
    result, _ = attend(
        query, factor, limits, tables_ptr + request * stride_table, kv_head, 0, whole, end, 0, 0,
        key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, key_open_ptr, NUM_KV_HEADS, HEAD_DIM, HEAD_PAD, BLOCK_SIZE,
        NUM_GROUPS, QUANTIZED, SPLIT_QUERY, FULL_PRECISION, R, BLOCK_N, PER_CHANNEL,
    )  # fmt: skip
    channels = tl.arange(0, HEAD_PAD)
    inside = live[:, None] & (channels < HEAD_DIM)[None, :]
    target = output_ptr + query_rows[:, None] * HEAD_DIM + channels[None, :]
    tl.store(target, result.to(output_ptr.dtype.element_ty), mask=inside)
