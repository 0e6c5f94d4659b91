"""What stands between two int8 products, fused: each kernel is one pass over a row, from int32 sums to int8 codes.

The rules are those of `kernels.int8`. Sums are reordered, so a code may be the neighbour of the spec's where a number
lies half way; but a row's bits depend on that row alone. Codes are kept as uint8, with 128 added: see `vnni`.
"""

from __future__ import annotations

import numpy as np

from kernels.cpu.jit import fast
from kernels.cpu.numerics import as_float, as_int, exp2, widen
from kernels.cpu.vnni import LANES

_CODE_MAX = np.float32(127.0)
_MIN_PEAK_BITS = np.int32(np.float32(1e-30).view(np.int32))
_SHIFTER = np.float32(1.5 * 2**23)  # adding it leaves the nearest integer in the low bits
_CODE_BITS = np.int32(0x4B400000 - 128)
_LOG2_E = np.float32(1.4426950408889634)
_NO_SIGN = np.int32(0x7FFFFFFF)


@fast
def quantize(first, last, x, codes, scales):
    """Quantize rows [first, last) of x [num_rows, size], floats as `numerics` takes them."""
    values = np.empty((1, x.shape[1]), np.float32)
    for row in range(first, last):
        for channel in range(x.shape[1]):
            values[0, channel] = widen(x[row, channel])
        _quantize_row(values, np.float32(1.0), row, codes, scales)


@fast
def dequantize(first, last, sums, row_scales, column_scales, bias, out):
    """Write columns [first, last) of products to out [num_rows, num_columns] fp32."""
    for row in range(out.shape[0]):
        scale = row_scales[row]
        for column in range(first, last):
            out[row, column] = np.float32(sums[row, column]) * scale * column_scales[column] + bias[column]


@fast
def embed(first, last, tokens, packed, table_scales, out):
    """Look tokens up in a quantized embedding, packed as `product.pack` does."""
    size = out.shape[1]
    for row in range(first, last):
        token = tokens[row]
        scale = table_scales[token]
        start = token // LANES * LANES * size + token % LANES * 4
        for four in range(size // 4):
            for each in range(4):
                out[row, 4 * four + each] = np.float32(packed[start + 4 * LANES * four + each]) * scale


@fast
def norm_quantize(first, last, hidden, eps, codes, scales):
    """RMSNorm without a weight."""
    values = np.empty((1, hidden.shape[1]), np.float32)
    for row in range(first, last):
        for channel in range(hidden.shape[1]):
            values[0, channel] = hidden[row, channel]
        _quantize_row(values, _rms_factor(values, eps), row, codes, scales)


@fast
def add_norm_quantize(first, last, sums, row_scales, column_scales, bias, eps, hidden, codes, scales):
    """Add products to the residual stream `hidden` [num_rows, size] fp32, then the next RMSNorm, without a weight.

    `codes` and `scales` may be those that the products were made from: a row is read before it is written.
    """
    values = np.empty((1, hidden.shape[1]), np.float32)
    for row in range(first, last):
        scale = row_scales[row]
        for channel in range(hidden.shape[1]):
            added = np.float32(sums[row, channel]) * scale * column_scales[channel] + bias[channel]
            values[0, channel] = hidden[row, channel] + added
        for channel in range(hidden.shape[1]):
            hidden[row, channel] = values[0, channel]
        _quantize_row(values, _rms_factor(values, eps), row, codes, scales)


@fast
def head_quantize(first, last, hidden, weight, eps, hartley, codes, scales):
    """The last RMSNorm: undo the spreading, normalize, weigh, spread."""
    size = hidden.shape[1]
    width = size // len(hartley)
    values = np.empty((1, size), np.float32)
    sets = values.reshape(width, size // width)
    for row in range(first, last):
        for channel in range(size):
            values[0, channel] = hidden[row, channel]
        _spread(sets, hartley)
        factor = _rms_factor(values, eps)
        for channel in range(size):
            values[0, channel] *= factor * weight[channel]
        _spread(sets, hartley)
        _quantize_row(values, np.float32(1.0), row, codes, scales)


@fast
def silu_quantize(first, last, sums, row_scales, column_scales, bias, width, codes, scales):
    """silu(gate) · up of sums [num_rows, 2 * size], rotated."""
    size = codes.shape[1]
    values = np.empty((1, size), np.float32)
    sets = values.reshape(width, size // width)
    for row in range(first, last):
        scale = row_scales[row]
        for channel in range(size):
            gate = np.float32(sums[row, channel]) * scale * column_scales[channel] + bias[channel]
            other = size + channel
            up = np.float32(sums[row, other]) * scale * column_scales[other] + bias[other]
            small = exp2(-abs(gate) * _LOG2_E)
            rising = gate if gate >= np.float32(0.0) else gate * small
            values[0, channel] = rising / (np.float32(1.0) + small) * up
        _rotate(sets)
        _quantize_row(values, np.float32(1.0), row, codes, scales)


@fast
def _rms_factor(values, eps):
    total = np.float32(0.0)
    for channel in range(values.shape[1]):
        total += values[0, channel] * values[0, channel]
    return np.float32(1.0) / np.sqrt(total / np.float32(values.shape[1]) + np.float32(eps))


@fast
def _quantize_row(values, factor, row, codes, scales):
    """Codes and scale of values * factor."""
    largest = _MIN_PEAK_BITS
    for channel in range(values.shape[1]):
        largest = max(largest, np.int32(as_int(values[0, channel]) & _NO_SIGN))  # NaN and infinities are the largest
    peak = as_float(largest)
    scales[row] = peak / _CODE_MAX * factor
    inverse = _CODE_MAX / peak
    for channel in range(values.shape[1]):
        codes[row, channel] = np.uint8(as_int(values[0, channel] * inverse + _SHIFTER) - _CODE_BITS)


@fast
def _spread(sets, hartley):
    """`_rotate`, then mix each run of neighbours by a symmetric matrix."""
    _rotate(sets)
    mixed = np.empty((1, sets.shape[1]), np.float32)
    for at in range(sets.shape[0]):
        mixed[:] = 0.0
        for each in range(sets.shape[1]):
            for other in range(sets.shape[1]):
                mixed[0, other] += sets[at, each] * hartley[each, other]
        for each in range(sets.shape[1]):
            sets[at, each] = mixed[0, each]


@fast
def _rotate(sets):
    """Butterflies over the first dimension of [width, num_sets], two levels at once: half the passes over memory."""
    width, num_sets = sets.shape
    norm = np.float32(1.0 / np.sqrt(width))
    half = 1
    if width & 0x55555555 == 0:  # no power of 4: one level more
        for low in range(0, width, 2):
            for each in range(num_sets):
                a, b = sets[low, each], sets[low + 1, each]
                sets[low, each], sets[low + 1, each] = a + b, a - b
        half = 2
    while half < width:
        for start in range(0, width, 4 * half):
            for at in range(start, start + half):
                for each in range(num_sets):
                    a, b = sets[at, each], sets[at + half, each]
                    c, d = sets[at + 2 * half, each], sets[at + 3 * half, each]
                    sets[at, each], sets[at + half, each] = a + b + (c + d), a - b + (c - d)
                    sets[at + 2 * half, each], sets[at + 3 * half, each] = a + b - (c + d), a - b - (c - d)
        half *= 4
    for at in range(width):
        for each in range(num_sets):
            sets[at, each] *= norm
