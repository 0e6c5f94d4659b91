"""Attention of many packed rows to a run of blocks: prefill, and cascade. 16 rows are the lanes of a vector.

A tile of 64 tokens is unpacked once for all rows: codes to 16 bits, two channels or two tokens in a lane; else to fp32.
"""

from __future__ import annotations

import numpy as np
from numba import types

from kernels.cpu.jit import by_type, exact
from kernels.cpu.many_simd import (
    STRIDE,
    multiply_keys,
    multiply_values,
    shrink_lanes,
    soften_lanes,
    unpack_key,
    unpack_values,
    weigh_lanes,
)
from kernels.cpu.softmax import TILE
from kernels.cpu.tile import ask_ahead, find, load_scales
from kernels.cpu.vectors import LANES


@exact
def attend_many(block_tables, table, first, end, head, shape, cache, parts, queries, out, peak, total, base):
    """Fill out, peak and total from base on for the first `num_packed` rows; see `kernels.cpu.attend`."""
    _, block_size, num_groups = shape
    key, value, key_scale, value_scale = cache
    packed, q_scales, flaws, visible, num_packed = queries
    head_dim = out.shape[1]
    size = head_dim // num_groups
    num_lanes = (num_packed + LANES - 1) // LANES
    width = packed.shape[1]
    share = parts * head_dim // width  # channels in an element
    lanes = np.zeros((num_lanes, width, LANES), packed.dtype)
    sums = np.zeros((num_lanes, head_dim, LANES), np.float32)
    peaks, totals = np.full((2, num_lanes * LANES), -np.inf, np.float32)
    totals[:] = 0.0
    totals[:num_packed] = flaws[:num_packed]
    _turn(packed, num_packed, lanes)
    keys, values = np.empty((TILE, STRIDE), packed.dtype), np.empty((TILE, STRIDE), packed.dtype)
    scores, weights = np.empty((TILE, LANES), np.float32), np.empty((TILE // 2, LANES), np.int32)
    key_scales, value_scales = np.ones((parts * num_groups, TILE), np.float32), np.ones((num_groups, TILE), np.float32)
    bounds = np.ones((num_groups, TILE), np.float32)
    seen, bound = np.empty(LANES, np.int32), np.empty(LANES, np.float32)
    steps, factors = np.empty((2, LANES), np.float32), np.empty(LANES, np.float32)
    places = np.empty(TILE // block_size, np.int64)
    for start in range(first * block_size, end, TILE):
        count = min(TILE, end - start)
        find(block_tables, table, start, count, head, shape, places)
        if len(key_scale):
            load_scales(key_scale, value_scale, places, block_size, count, key_scales, value_scales, bounds)
        _unpack(key, value, places, block_size, head_dim, count, keys, values)
        ask_ahead(block_tables, table, start + TILE, end, head, shape, head_dim, key, value)
        for index in range(num_lanes):
            most = _see(visible, index * LANES, num_packed, start, count, seen)
            if most == 0:
                continue
            scores[:] = 0.0
            for segment in range(parts * num_groups):
                q = (index * width + segment * size // share) * LANES
                k = segment % num_groups * size // share
                for token in range(0, most, LANES):
                    s = segment * TILE + token
                    k_at = token * STRIDE + k
                    multiply_keys(lanes, q, keys, k_at, size // share, key_scales, s, scores, token * LANES)
            soften_lanes(scores, seen, most, q_scales, index * LANES, peaks, totals, steps)
            o = index * head_dim * LANES
            shrink_lanes(sums, o, head_dim, steps)
            for group in range(num_groups):
                for lane in range(LANES):
                    bound[lane] = bounds[group, max(seen[lane] - 1, 0)]
                v, s, sums_at = group * size, group * TILE, o + group * size * LANES
                _add(
                    parts, scores, weights, most, value_scales, s, bound, steps, factors, values, v, size, sums, sums_at
                )
    _turn_back(sums, peaks, totals, num_packed, out, peak, total, base)


@exact
def _turn(packed, num_packed, lanes):
    """Make lanes of rows."""
    for row in range(num_packed):
        for column in range(packed.shape[1]):
            lanes[row // LANES, column, row % LANES] = packed[row, column]


@exact
def _see(visible, first, num_packed, start, count, seen):
    """How many tokens of a tile each lane sees, at most 0 for none; returns the most."""
    most = 0
    for lane in range(LANES):
        seen[lane] = min(count, visible[first + lane] - start) if first + lane < num_packed else 0
        most = max(most, seen[lane])
    return most


@exact
def _turn_back(sums, peaks, totals, num_packed, out, peak, total, base):
    """Make rows of lanes."""
    for row in range(num_packed):
        peak[base + row], total[base + row] = peaks[row], totals[row]
        for channel in range(out.shape[1]):
            out[base + row, channel] = sums[row // LANES, channel, row % LANES]


@by_type
def _unpack(key, value, places, block_size, head_dim, count, keys, values):
    if keys.dtype == types.float32:

        def floats(key, value, places, block_size, head_dim, count, keys, values):
            for token in range(count):
                at = (places[token // block_size] + token % block_size) * head_dim
                unpack_key(key, at, head_dim, keys, token * STRIDE)
                unpack_key(value, at, head_dim, values, token * STRIDE)

        return floats

    def integers(key, value, places, block_size, head_dim, count, keys, values):
        for token in range(count):
            at = (places[token // block_size] + token % block_size) * head_dim
            unpack_key(key, at, head_dim, keys, token * STRIDE)
            if token % 2 == 0:
                next_at = at + head_dim if token + 1 < count else at  # an odd one out is paired with itself
                unpack_values(value, at, next_at, head_dim, values, token // 2 * STRIDE)

    return integers


@by_type
def _add(parts, scores, weights, count, scales, s_at, bound, steps, factors, values, first, size, sums, o):
    if values.dtype == types.float32:

        def floats(parts, scores, weights, count, scales, s_at, bound, steps, factors, values, first, size, sums, o):
            for channel in range(first, first + size, LANES):
                multiply_values(scores, 0, values, channel, count, steps, LANES, sums, o + (channel - first) * LANES)

        return floats

    def integers(parts, scores, weights, count, scales, s_at, bound, steps, factors, values, first, size, sums, o):
        pairs = (count + 1) // 2
        for part in range(parts):
            if part == 0:
                weigh_lanes(scores, pairs, scales, s_at, bound, steps, weights, factors, 0)
            else:
                weigh_lanes(scores, pairs, scales, s_at, bound, steps, weights, factors, 1)
            for channel in range(first, first + size, LANES):
                multiply_values(weights, 0, values, channel, pairs, factors, 0, sums, o + (channel - first) * LANES)

    return integers
