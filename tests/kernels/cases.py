"""Batches, caches and inputs for the kernel tests, and the tolerances with their derivation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kernels import ops
from kernels.layout import LayerKV
from kernels.plan import PagedBatch
from kernels.quant import parse_kv_format

ATTENTION_TOLERANCE = {
    # Equal queries and caches. A score is a sum of at most 256 products of an element of q with one of k, scaled by
    # head_dim^-1/2: below 16 in size and, at 2^-24 a product in another order, within 1e-5; a weight is as far off in
    # relation, and values are below 4.5 = 127 * 0.035: 2 * 1e-5 * 4.5, of which half has never been seen.
    torch.float32: 5e-5,
    # (Numba multiplies codes with integers of 30 bits then: finer than fp32.)
    # 16-bit outputs below 4: one unit in the last place, for either side may round to another neighbour; torch's own
    # kernel rounds the weights as well, and numba takes queries and weights against codes to 15 bits: 5e-4 at most seen.
    torch.bfloat16: 2**-6,
    torch.float16: 2**-9,
}
CODE_RATE = 0.01
"""Share of codes that may differ by 1 where RoPE or the rotation is fused: fp32 sums in another order move an x within
2^-20 of a tie over it, or a scale by one unit in the last place (2^-11), which moves a code near 127 by 1/16."""

BATCHES = {  # (num_computed, num_new) of each request
    "one-token": [(0, 1)],
    "prompt-of-a-prime": [(0, 31)],
    "chunk-behind-prefix": [(17, 13)],
    "decode-alone": [(40, 1)],
    "decode-mixed-lengths": [(0, 1), (7, 1), (8, 1), (9, 1), (150, 1)],
    "decode-same-length": [(12, 1), (12, 1)],
    "all-together": [(33, 1), (0, 9), (15, 2), (8, 8), (130, 1), (40, 35)],
}


@dataclass(frozen=True)
class Shape:
    """Sizes of a layer and of the heads that read it."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    num_blocks: int = 64

    def __str__(self) -> str:
        return f"H{self.num_heads}-K{self.num_kv_heads}-D{self.head_dim}-B{self.block_size}"


@dataclass(frozen=True)
class Inputs:
    """What one layer of a model hands to the ops."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    rotary: tuple[torch.Tensor, torch.Tensor]


def make_batch(
    lengths: list[tuple[int, int]], block_size: int, num_blocks: int = 64, *, seed: int = 0, shared_blocks: int = 0
) -> PagedBatch:
    """Requests with shuffled blocks; what is past a request's blocks in its table belongs to nobody.

    Args:
        lengths: (num_computed, num_new) of each request.
        block_size: tokens a block.
        num_blocks: of the pool.
        seed: of the shuffle.
        shared_blocks: leading blocks that all requests have in common.
    """
    free = list(np.random.default_rng(seed).permutation(num_blocks))
    computed, new = np.array(lengths, dtype=np.int64).T
    seq_lens = computed + new
    nobodys = free.pop()
    common = [free.pop() for _ in range(shared_blocks)]
    tables = np.full((len(lengths), -(-seq_lens.max() // block_size)), nobodys, dtype=np.int64)
    open_slots = np.full_like(tables, -1)
    num_open = 0
    slots = []
    for row, (start, seq_len) in enumerate(zip(computed, seq_lens, strict=True)):
        num_used = -(-seq_len // block_size)
        tables[row, :num_used] = [*common, *(free.pop() for _ in range(num_used - shared_blocks))]
        positions = np.arange(start, seq_len)
        slots.append(tables[row, positions // block_size] * block_size + positions % block_size)
        for index in range(start // block_size, num_used):
            open_slots[row, index] = num_open
            num_open += 1
    starts = np.concatenate(([0], np.cumsum(new)))
    return PagedBatch(np.concatenate(slots), starts, seq_lens, tables, open_slots)


def make_layer(format_name: str, shape: Shape, dtype: torch.dtype, *, num_open: int = 64) -> LayerKV:
    """A layer that holds random tokens in every slot, of whatever they would be if a request had written them."""
    kv_format = parse_kv_format(format_name)
    cache_shape = (shape.num_blocks, shape.num_kv_heads, shape.block_size, shape.head_dim)
    if not kv_format.quantized:
        return LayerKV(kv_format, *(torch.randn(cache_shape).to(dtype) for _ in range(2)))

    def codes() -> torch.Tensor:
        return torch.randint(-127, 128, cache_shape, dtype=torch.int8)

    def scales(*sizes: int) -> torch.Tensor:
        return (torch.rand(sizes) * 0.03 + 0.005).half()

    per_token = (*cache_shape[:3], kv_format.num_groups(shape.head_dim))
    if not kv_format.per_channel_keys:
        return LayerKV(kv_format, codes(), codes(), scales(*per_token), scales(*per_token))
    key_scale = scales(*cache_shape[:2], shape.head_dim)
    key_open = torch.randn(num_open, *cache_shape[1:]).to(dtype)
    return LayerKV(kv_format, codes(), codes(), key_scale, scales(*per_token), key_open)


def clone(layer: LayerKV) -> LayerKV:
    """A layer of its own memory."""
    copied = {
        name: None if (tensor := getattr(layer, name)) is None else tensor.clone()
        for name in ("key", "value", "key_scale", "value_scale", "key_open")
    }
    return LayerKV(layer.format, **copied)


def poison(layer: LayerKV, batch: PagedBatch) -> None:
    """NaN and ±127 wherever no token of a request lies: free blocks, tail slots, their scales, closed blocks' copies."""
    num_blocks, _, block_size, _ = layer.key.shape
    used = torch.zeros(num_blocks, block_size, dtype=torch.bool)
    for table, seq_len in zip(batch.block_tables, batch.seq_lens, strict=True):
        positions = np.arange(seq_len)
        used[table[positions // block_size], positions % block_size] = True
    for cache in (layer.key, layer.value):
        garbage = torch.nan if cache.is_floating_point() else -127
        cache.masked_fill_(~used[:, None, :, None], garbage)
    if layer.key_scale is None or layer.value_scale is None:
        return
    layer.value_scale.masked_fill_(~used[:, None, :, None], torch.nan)
    if layer.key_open is None:
        layer.key_scale.masked_fill_(~used[:, None, :, None], torch.nan)
        return
    layer.key_scale.masked_fill_(~used.all(dim=1)[:, None, None], torch.nan)
    assert batch.open_slots is not None
    opened = torch.zeros(layer.key_open.shape[0], block_size, dtype=torch.bool)
    for slots, seq_len in zip(batch.open_slots, batch.seq_lens, strict=True):
        positions = np.arange(seq_len)
        positions = positions[slots[positions // block_size] >= 0]
        opened[slots[positions // block_size], positions % block_size] = True
    layer.key_open.masked_fill_(~opened[:, None, :, None], torch.nan)


def make_inputs(batch: PagedBatch, shape: Shape, dtype: torch.dtype, *, rotate: bool = True) -> Inputs:
    """Unit normals as strided views of one product, and a rotary table (or one that turns nothing)."""
    num_tokens, head_dim = len(batch.slot_mapping), shape.head_dim
    sizes = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
    fused = torch.randn(num_tokens, sum(sizes), head_dim).to(dtype)
    query, key, value = fused.split(sizes, dim=1)
    angles = torch.rand(num_tokens, head_dim // 2) * 6.28 if rotate else torch.zeros(num_tokens, head_dim // 2)
    cos = torch.cat((angles.cos(), angles.cos()), dim=1)
    sin = torch.cat((-angles.sin(), angles.sin()), dim=1)
    return Inputs(query, key, value, (cos, sin))


def run_step(
    inputs: Inputs, layer: LayerKV, batch: PagedBatch, backend: str, **options: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Store and attend in one layer; returns the rotated query, the output and the flags."""
    plan = ops.plan_step(batch, layer, backend=backend, **options)
    query = ops.store_kv(inputs.query, inputs.key, inputs.value, inputs.rotary, layer, plan)
    output = ops.paged_attention(query, layer, plan, scale=layer.key.shape[-1] ** -0.5)
    return query, output, ops.bad_rows(plan)
