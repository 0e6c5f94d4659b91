"""Where the blocks of a tile lie, their scales, and what to fetch next."""

from __future__ import annotations

import numpy as np

from kernels.cpu.few_simd import prefetch
from kernels.cpu.jit import exact
from kernels.cpu.numerics import half_to_float
from kernels.cpu.softmax import TILE

_LOW_PART = np.float32(2.0**-15)


@exact
def find(block_tables, table, start, count, head, shape, places):
    """The place of a tile's blocks in the cache, in tokens."""
    num_kv_heads, block_size, _ = shape
    for block in range((count + block_size - 1) // block_size):
        block_id = block_tables[table, start // block_size + block]
        places[block] = (block_id * num_kv_heads + head) * block_size


@exact
def ask_ahead(block_tables, table, start, end, head, shape, head_dim, key, value):
    """Prefetch the tile from start on."""
    num_kv_heads, block_size, _ = shape
    for position in range(start, min(end, start + TILE), block_size):
        at = (block_tables[table, position // block_size] * num_kv_heads + head) * block_size * head_dim
        prefetch(key, at, block_size * head_dim)
        prefetch(value, at, block_size * head_dim)


@exact
def load_scales(key_scale, value_scale, places, block_size, count, key_scales, value_scales, bounds):
    """Widen the scales of a tile's tokens, a group after the other.

    key_scales has them once more for the queries' low parts, 2^15 times smaller. bounds[group, token] is the largest
    value scale up to that token.
    """
    num_groups = len(value_scales)
    for start in range(0, count, block_size):
        at = places[start // block_size] * num_groups
        for group in range(num_groups):
            for token in range(start, min(count, start + block_size)):
                place = at + (token - start) * num_groups + group
                key_scales[group, token] = half_to_float(key_scale[place])
                value_scales[group, token] = half_to_float(value_scale[place])
    for group in range(num_groups, len(key_scales)):
        for token in range(count):
            key_scales[group, token] = key_scales[group - num_groups, token] * _LOW_PART
    for group in range(num_groups):
        largest = value_scales[group, 0]
        for token in range(count):
            largest = max(largest, value_scales[group, token])
            bounds[group, token] = largest
