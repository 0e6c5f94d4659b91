"""RoPE, Hadamard rotation, quantization and the write to the cache in one launch, by the rule of `kernels.quant`.

    rotated = x * cos + roll(x, head_dim / 2) * sin;  scale = fp16(max(absmax / 127, 2^-24))
    code = clamp(round_half_even(rotated / scale), -127, 127)

The launch switches contraction to fused multiply-adds off, so that RoPE rounds as it does in torch.
Source: RoFormer, Su et al. 2021; QuaRot, Ashkboos et al. 2024.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.gpu.attend import pad, round_half_even
from kernels.layout import LayerKV
from kernels.quant import CODE_MAX, MIN_SCALE

_CODE_MAX = tl.constexpr(CODE_MAX)
_MIN_SCALE = tl.constexpr(MIN_SCALE)


@dataclass(frozen=True, slots=True, eq=False)
class OpenBlocks:
    """per_channel only: keys that wait, as they are, for their block to be full; on the device."""

    slots: torch.Tensor
    """[num_tokens] int64: open block * block_size + offset of each row."""
    filled: torch.Tensor
    """[num_filled, 2] int32: block and open block of those whose last slot this step writes."""


def store_kv(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rotary: tuple[torch.Tensor, torch.Tensor],
    layer: LayerKV,
    *,
    slots: torch.Tensor,
    open_blocks: OpenBlocks | None,
    bad_rows: torch.Tensor,
) -> torch.Tensor:
    """See `kernels.ops.store_kv`.

    Args:
        query: [num_tokens, num_heads, head_dim].
        key: [num_tokens, num_kv_heads, head_dim].
        value: like key.
        rotary: (cos, sin).
        layer: mutated.
        slots: [num_tokens] int64.
        open_blocks: per_channel only.
        bad_rows: [num_tokens] bool, mutated: flags are added.
    """
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, block_size = layer.key.shape[1:3]
    rotated = torch.empty((num_tokens, num_heads, head_dim), dtype=query.dtype, device=query.device)
    head_rows = triton.next_power_of_2(num_kv_heads)
    keys = layer.key if layer.key_open is None else layer.key_open
    _store_kv_kernel[(num_tokens, 1 + triton.cdiv(num_heads, head_rows))](
        query, key, value, *rotary, slots, slots if open_blocks is None else open_blocks.slots,
        rotated, keys, layer.value, layer.key_scale, layer.value_scale, bad_rows,
        query.stride(0), query.stride(1), key.stride(0), key.stride(1), value.stride(0), value.stride(1), layer.limit,
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HEAD_DIM=head_dim,
        HEAD_PAD=triton.next_power_of_2(head_dim), BLOCK_SIZE=block_size,
        NUM_GROUPS=layer.format.num_groups(head_dim), QUANTIZED=layer.format.quantized,
        OPEN_KEYS=layer.key_open is not None, ROTATION=(head_dim & -head_dim) if layer.format.rotated else 1,
        HEAD_ROWS=head_rows, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    if open_blocks is not None and len(open_blocks.filled):
        _close_blocks_kernel[(len(open_blocks.filled), num_kv_heads)](
            layer.key_open, layer.key, layer.key_scale, open_blocks.filled,
            NUM_KV_HEADS=num_kv_heads, HEAD_DIM=head_dim, HEAD_PAD=triton.next_power_of_2(head_dim),
            BLOCK_SIZE=block_size, num_warps=4,
        )  # fmt: skip
    return rotated


@triton.jit
def _store_kv_kernel(
    query_ptr, key_ptr, value_ptr, cos_ptr, sin_ptr, slots_ptr, key_slots_ptr,
    rotated_ptr, key_cache_ptr, value_cache_ptr, key_scale_ptr, value_scale_ptr, bad_rows_ptr,
    stride_query_token, stride_query_head, stride_key_token, stride_key_head, stride_value_token, stride_value_head,
    limit,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, NUM_GROUPS: tl.constexpr, QUANTIZED: tl.constexpr, OPEN_KEYS: tl.constexpr,
    ROTATION: tl.constexpr, HEAD_ROWS: tl.constexpr,
):  # fmt: skip
    """Grid (tokens, 1 + chunks of query heads): key and value of one token in all KV heads, or some of its queries."""
    token = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    channels = tl.arange(0, HEAD_PAD)
    if chunk > 0:
        heads = (chunk - 1) * HEAD_ROWS + tl.arange(0, HEAD_ROWS)
        inside = (heads < NUM_HEADS)[:, None] & (channels < HEAD_DIM)[None, :]
        row_ptr = query_ptr + token * stride_query_token + heads[:, None].to(tl.int64) * stride_query_head
        query = _rotate(row_ptr, cos_ptr, sin_ptr, token, inside, HEAD_DIM, HEAD_PAD, ROTATION)
        target = rotated_ptr + (token * NUM_HEADS + heads)[:, None] * HEAD_DIM + channels[None, :]
        tl.store(target, query.to(rotated_ptr.dtype.element_ty), mask=inside)
        return

    heads = tl.arange(0, HEAD_ROWS)
    live = heads < NUM_KV_HEADS
    inside = live[:, None] & (channels < HEAD_DIM)[None, :]
    row_ptr = key_ptr + token * stride_key_token + heads[:, None].to(tl.int64) * stride_key_head
    key = _rotate(row_ptr, cos_ptr, sin_ptr, token, inside, HEAD_DIM, HEAD_PAD, ROTATION)
    row_ptr = value_ptr + token * stride_value_token + heads[:, None].to(tl.int64) * stride_value_head
    value = tl.load(row_ptr + channels[None, :], mask=inside, other=0.0).to(tl.float32)

    # a comparison with NaN is false
    fits = ((tl.abs(key) <= limit) & (tl.abs(value) <= limit)).to(tl.int32)
    good = tl.min(tl.min(fits, axis=1), axis=0) > 0
    key = tl.where(good, key, 0.0)
    value = tl.where(good, value, 0.0)
    tl.store(bad_rows_ptr + token, True, mask=~good)

    key_rows = _cache_rows(tl.load(key_slots_ptr + token), heads, NUM_KV_HEADS, BLOCK_SIZE)
    value_rows = _cache_rows(tl.load(slots_ptr + token), heads, NUM_KV_HEADS, BLOCK_SIZE)
    _write(key, key_rows, live, key_cache_ptr, key_scale_ptr, HEAD_DIM, HEAD_PAD, NUM_GROUPS,
           QUANTIZED and not OPEN_KEYS)  # fmt: skip
    _write(value, value_rows, live, value_cache_ptr, value_scale_ptr, HEAD_DIM, HEAD_PAD, NUM_GROUPS, QUANTIZED)


@triton.jit
def _close_blocks_kernel(
    key_open_ptr, key_ptr, key_scale_ptr, filled_ptr,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Grid (filled blocks, KV heads): quantize a block with a scale a channel, over its tokens."""
    pair = filled_ptr + 2 * tl.program_id(0)
    kv_head = tl.program_id(1)
    head = tl.load(pair).to(tl.int64) * NUM_KV_HEADS + kv_head
    open_head = tl.load(pair + 1).to(tl.int64) * NUM_KV_HEADS + kv_head
    channels = tl.arange(0, HEAD_PAD)
    inside = (channels < HEAD_DIM)[None, :]
    places = tl.arange(0, BLOCK_SIZE)[:, None] * HEAD_DIM + channels[None, :]
    keys = tl.load(key_open_ptr + open_head * BLOCK_SIZE * HEAD_DIM + places, mask=inside, other=0.0).to(tl.float32)
    codes, scales = quantize(keys, tl.max(tl.abs(keys), axis=0, keep_dims=True))
    tl.store(key_ptr + head * BLOCK_SIZE * HEAD_DIM + places, codes, mask=inside)
    tl.store(key_scale_ptr + head * HEAD_DIM + channels[None, :], scales, mask=inside)


@triton.jit
def _rotate(
    row_ptr, cos_ptr, sin_ptr, token, inside, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, ROTATION: tl.constexpr
):
    """[HEAD_ROWS, HEAD_PAD] fp32: heads of one token after RoPE and the Hadamard rotation."""
    channels = tl.arange(0, HEAD_PAD)
    partners = tl.where(channels < HEAD_DIM // 2, channels + HEAD_DIM // 2, channels - HEAD_DIM // 2)
    x = tl.load(row_ptr + channels[None, :], mask=inside, other=0.0).to(tl.float32)
    partner = tl.load(row_ptr + partners[None, :], mask=inside, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + token * HEAD_DIM + channels, mask=channels < HEAD_DIM, other=0.0)
    sin = tl.load(sin_ptr + token * HEAD_DIM + channels, mask=channels < HEAD_DIM, other=0.0)
    x = x * cos[None, :] + partner * sin[None, :]
    if ROTATION > 1:
        x = _hadamard(x, ROTATION)
    return x


@triton.jit
def _hadamard(x, SIZE: tl.constexpr):
    """Multiply each run of SIZE channels by the normalized Hadamard matrix.

    Each round replaces the lowest bit of a channel's index by sum and difference and turns the index by one bit; after
    log2(SIZE) rounds all bits are done and in their places. Source: the fast transform of constant geometry.
    """
    ROWS: tl.constexpr = x.shape[0]
    WIDTH: tl.constexpr = x.shape[1]
    x = tl.reshape(x, [ROWS * (WIDTH // SIZE), SIZE])
    for _ in tl.static_range(log2(SIZE)):
        even, odd = tl.split(tl.reshape(x, [ROWS * (WIDTH // SIZE), SIZE // 2, 2]))
        x = tl.reshape(tl.permute(tl.join(even + odd, even - odd), (0, 2, 1)), [ROWS * (WIDTH // SIZE), SIZE])
    return tl.reshape(x, [ROWS, WIDTH]) * root(SIZE)


@triton.jit
def _cache_rows(slot, heads, NUM_KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """[HEAD_ROWS] int64: where the heads of a slot lie in a cache seen as rows of one token and head."""
    return (slot // BLOCK_SIZE * NUM_KV_HEADS + heads) * BLOCK_SIZE + slot % BLOCK_SIZE


@triton.jit
def _write(
    x, rows, live, cache_ptr, scale_ptr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, NUM_GROUPS: tl.constexpr,
    QUANTIZED: tl.constexpr,
):  # fmt: skip
    """Write heads [HEAD_ROWS, HEAD_PAD] fp32 to their rows, as codes and scales or in the cache's dtype."""
    channels = tl.arange(0, HEAD_PAD)
    inside = live[:, None] & (channels < HEAD_DIM)[None, :]
    target = cache_ptr + rows[:, None] * HEAD_DIM + channels[None, :]
    if QUANTIZED:
        GROUPS: tl.constexpr = pad(NUM_GROUPS)
        group = tl.arange(0, GROUPS)
        grouped = tl.reshape(x, [x.shape[0], GROUPS, HEAD_PAD // GROUPS])
        codes, scales = quantize(grouped, tl.max(tl.abs(grouped), axis=2, keep_dims=True))
        tl.store(target, tl.reshape(codes, [x.shape[0], HEAD_PAD]), mask=inside)
        tl.store(
            scale_ptr + rows[:, None] * NUM_GROUPS + group[None, :],
            tl.reshape(scales, [x.shape[0], GROUPS]),
            mask=live[:, None] & (group < NUM_GROUPS)[None, :],
        )
    else:
        tl.store(target, x.to(cache_ptr.dtype.element_ty), mask=inside)


@triton.jit
def quantize(x, absmax):
    """Return int8 codes like x and fp16 scales like absmax, which broadcasts to x; both fp32."""
    scales = tl.maximum(tl.div_rn(absmax, tl.full(absmax.shape, _CODE_MAX, tl.float32)), _MIN_SCALE).to(tl.float16)
    codes = round_half_even(tl.div_rn(x, tl.broadcast_to(scales.to(tl.float32), x.shape)))
    return tl.clamp(codes, -_CODE_MAX, _CODE_MAX).to(tl.int8), scales


@triton.constexpr_function
def log2(size: int) -> int:
    """Of a power of two."""
    return size.bit_length() - 1


@triton.constexpr_function
def root(size: int) -> float:
    """The factor that makes a Hadamard matrix orthonormal."""
    return float(size**-0.5)
