"""What the attention kernels are told of a layer and of the heads that read it, at launch and as constants."""

from __future__ import annotations

import torch
import triton

from kernels.layout import LayerKV

LOG2_E = 1.4426950408889634
"""Scores are scaled by this, so that the softmax can use powers of two."""


def cache_arguments(layer: LayerKV) -> tuple[torch.Tensor | None, ...]:
    """Return the pointers of a layer in the order of the kernels' parameters."""
    return layer.key, layer.value, layer.key_scale, layer.value_scale, layer.key_open


def constants(
    query: torch.Tensor, layer: LayerKV, *, min_rows: int, block_n: int, split_query: bool
) -> dict[str, int | bool]:
    """Return the compile-time constants that all attention kernels share.

    Args:
        query: [num_tokens, num_heads, head_dim].
        layer: that it attends to.
        min_rows: query rows of a program, if the heads of one KV head are not more; a power of two.
        block_n: tokens a tile.
        split_query: use int8 products of queries and keys where the format allows.
    """
    _, num_heads, head_dim = query.shape
    num_kv_heads, block_size = layer.key.shape[1:3]
    group = num_heads // num_kv_heads
    num_groups = layer.format.num_groups(head_dim)
    per_channel = layer.format.per_channel_keys
    split = split_query and layer.format.quantized and not per_channel and num_groups == 1
    split = split and query.dtype != torch.float32
    # the rows of a product are padded to 16; a split query has two rows each
    rows = max(min_rows // 2 if split else min_rows, triton.next_power_of_2(group))
    return {
        "NUM_KV_HEADS": num_kv_heads,
        "HEAD_DIM": head_dim,
        "HEAD_PAD": max(32, triton.next_power_of_2(head_dim)),
        "BLOCK_SIZE": block_size,
        "NUM_GROUPS": num_groups,
        "QUANTIZED": layer.format.quantized,
        "SPLIT_QUERY": split,
        # also in interpreter mode, on CPU tensors: numpy knows no product in bf16
        "FULL_PRECISION": query.dtype == torch.float32 or query.device.type == "cpu",
        "R": rows,
        "BLOCK_N": block_n,
        "PER_CHANNEL": per_channel,
        "HEADS_A_KV_HEAD": group,
    }


def tile_rows(layer: LayerKV) -> int:
    """Return the query rows of a program of many; products a group of channels each spill beyond 16."""
    return 64 if layer.format.num_groups(layer.key.shape[3]) == 1 else 16


def queries_a_tile(query: torch.Tensor, layer: LayerKV) -> int:
    """Return how many tokens' query heads of one KV head fit into the rows of a program."""
    group = query.shape[1] // layer.key.shape[1]
    return max(1, int(tile_rows(layer) // triton.next_power_of_2(group)))


def decode_tokens(layer: LayerKV) -> int:
    """Return the tokens a tile of a single row; this and the next by the resource report of benchmarks/aot.py."""
    return 64 if layer.format.num_groups(layer.key.shape[3]) == 1 else 32


def tile_tokens(head_dim: int) -> int:
    """Return the tokens a tile of many rows: registers hold their output, scores and converted keys side by side."""
    return 64 if head_dim <= 64 else 32


def num_warps(head_dim: int) -> int:
    """Return the warps of a program; a head of 256 channels fills the registers of eight."""
    return 4 if head_dim <= 128 else 8
