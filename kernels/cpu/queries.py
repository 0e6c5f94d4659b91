"""The query heads of one KV head, of all rows of an item, one below the other.

For codes they become integers of 16 bits, q = row scale * (high + low / 2^15), the low part only where the model computes
in fp32; products with codes are then exact. 32767 * 127 * 256 fits in 31 bits.
"""

from __future__ import annotations

import numpy as np
from numba import types

from kernels.cpu.jit import by_type, exact
from kernels.cpu.numerics import as_float, as_int

_MAX = np.float32(32767.0)
_ROUND = np.float32(1.5 * 2**23)
_LOW = np.float32(2.0**15)


@exact
def pack(query, group, head, row_tokens, row_visible, row, last_row, parts, packed, q_scales, flaws, visible):
    """Fill packed, [rows, parts * head_dim]: fp32, or pairs of 16 bits as int32; and what goes with each row.

    flaws: 0; NaN for a row that is not finite.
    """
    for at in range((last_row - row) * group):
        visible[at] = row_visible[row + at // group]
        token, q_head = row_tokens[row + at // group], head * group + at % group
        largest = np.int32(0)
        for channel in range(query.shape[2]):
            largest = max(largest, np.int32(as_int(query[token, q_head, channel]) & 0x7FFFFFFF))
        flaws[at] = as_float(largest) * np.float32(0.0)
        q_scales[at] = _write(query, token, q_head, as_float(largest), parts, packed, at)


@by_type
def _write(query, token, q_head, largest, parts, packed, at):
    if packed.dtype == types.float32:

        def floats(query, token, q_head, largest, parts, packed, at):
            for channel in range(query.shape[2]):
                packed[at, channel] = query[token, q_head, channel]
            return np.float32(1.0)

        return floats

    def integers(query, token, q_head, largest, parts, packed, at):
        head_dim = query.shape[2]
        shorts = packed[at].view(np.int16)
        scale = largest / _MAX
        if not (scale > np.float32(0.0)) or scale > np.float32(3e38):
            shorts[:] = 0
            return np.float32(1.0)
        for channel in range(head_dim):
            x = query[token, q_head, channel] / scale
            high = (x + _ROUND) - _ROUND
            shorts[channel] = np.int16(np.int32(high))
            if parts == 2:
                shorts[head_dim + channel] = np.int16(np.int32(((x - high) * _LOW + _ROUND) - _ROUND))
        return scale

    return integers
