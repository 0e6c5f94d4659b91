"""RoPE, rotation, quantization and the write to the cache, one row after the other, in one pass.

Every step is the rule of `kernels.quant` in fp32; no fast math, so that codes and scales are those of the spec.
"""

from __future__ import annotations

import numpy as np

from kernels.cpu.jit import exact
from kernels.cpu.numerics import as_float, as_int, float_to_half, half_to_float, narrow, widen

_CODE_MAX = np.float32(127.0)
_MIN_SCALE = np.float32(2.0**-24)
_ROUND = np.float32(1.5 * 2**23)  # adding and subtracting it rounds to the nearest integer, ties to even


@exact
def store(
    first,
    last,  # rows [first, last) of the step
    query,  # floats as `numerics` takes them, flat, in memory order; key and value alike
    key,
    value,
    strides,  # [3, 2]: elements from one token to the next, and from one head to the next
    cos,  # [num_tokens, head_dim] fp32
    sin,
    slots,  # [num_tokens]
    rotated,  # size of the Hadamard blocks; 0: none
    limit,  # the largest value that can be stored
    shape,  # (num_kv_heads, block_size, num_groups)
    key_cache,  # flat
    value_cache,
    key_scale,  # flat uint16; empty: not quantized
    value_scale,
    out,  # [num_tokens, num_heads, head_dim], of the query's type
    bad,  # [num_tokens] bool
):
    """Write rows to their slots and the rotated query to out; flag rows that cannot be stored, as zeros."""
    num_kv_heads, block_size, num_groups = shape
    _, num_heads, head_dim = out.shape
    heads = np.empty((2 * num_kv_heads, head_dim), np.float32)
    one = np.empty((1, head_dim), np.float32)
    for row in range(first, last):
        for head in range(num_heads):
            _turn(query, row * strides[0, 0] + head * strides[0, 1], cos, sin, row, rotated, one, 0)
            for channel in range(head_dim):
                out[row, head, channel] = narrow(one[0, channel], out)
        for head in range(num_kv_heads):
            _turn(key, row * strides[1, 0] + head * strides[1, 1], cos, sin, row, rotated, heads, head)
            for channel in range(head_dim):
                at = row * strides[2, 0] + head * strides[2, 1] + channel
                heads[num_kv_heads + head, channel] = widen(value[at])
        if not _fits(heads, limit):
            bad[row] = True
            heads[:] = 0.0
        block, offset = slots[row] // block_size, slots[row] % block_size
        for head in range(num_kv_heads):
            place = (block * num_kv_heads + head) * block_size + offset
            _write(heads, head, place, num_groups, key_cache, key_scale)
            _write(heads, num_kv_heads + head, place, num_groups, value_cache, value_scale)


@exact
def _turn(x, x_at, cos, sin, row, rotated, out, at):
    """RoPE, half-split, then the Hadamard rotation by butterflies."""
    head_dim = out.shape[1]
    half = head_dim // 2
    for channel in range(half):
        low, high = widen(x[x_at + channel]), widen(x[x_at + channel + half])
        out[at, channel] = low * cos[row, channel] + high * sin[row, channel]
        out[at, channel + half] = high * cos[row, channel + half] + low * sin[row, channel + half]
    if not rotated:
        return
    width = 1
    while width < rotated:
        for start in range(0, head_dim, 2 * width):
            for channel in range(start, start + width):
                low, high = out[at, channel], out[at, channel + width]
                out[at, channel] = low + high
                out[at, channel + width] = low - high
        width *= 2
    norm = np.float32(1.0 / np.sqrt(rotated))
    for channel in range(head_dim):
        out[at, channel] *= norm


@exact
def _fits(heads, limit):
    """False for NaN, infinities and what the cache cannot hold: their bits are the larger ones."""
    largest = np.int32(0)
    for head in range(heads.shape[0]):
        for channel in range(heads.shape[1]):
            largest = max(largest, np.int32(as_int(heads[head, channel]) & 0x7FFFFFFF))
    return as_float(largest) <= limit


@exact
def _write(heads, head, place, num_groups, cache, scales):
    """Write one head to one slot, quantized if there are scales."""
    head_dim = heads.shape[1]
    size = head_dim // num_groups
    if not len(scales):
        for channel in range(head_dim):
            cache[place * head_dim + channel] = narrow(heads[head, channel], cache)
        return
    for group in range(num_groups):
        largest = np.int32(0)
        for channel in range(group * size, (group + 1) * size):
            largest = max(largest, np.int32(as_int(heads[head, channel]) & 0x7FFFFFFF))
        bits = float_to_half(max(as_float(largest) / _CODE_MAX, _MIN_SCALE))
        scales[place * num_groups + group] = bits
        scale = half_to_float(bits)
        for channel in range(group * size, (group + 1) * size):
            code = (heads[head, channel] / scale + _ROUND) - _ROUND
            cache[place * head_dim + channel] = np.int8(min(max(code, -_CODE_MAX), _CODE_MAX))
