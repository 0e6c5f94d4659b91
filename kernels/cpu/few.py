"""Attention of few packed rows to a run of blocks: decode. Codes are multiplied as they lie in the cache."""

from __future__ import annotations

import numpy as np
from numba import types

from kernels.cpu.few_simd import ROWS, TOKENS, add_scores, add_values, soften_row, weigh_row
from kernels.cpu.jit import by_type, exact
from kernels.cpu.softmax import TILE
from kernels.cpu.tile import ask_ahead, find, load_scales


@exact
def attend_few(block_tables, table, first, end, head, shape, cache, parts, queries, num_rows, out, peak, total, base):
    """Fill out, peak and total from base on; see `kernels.cpu.attend`. `num_rows` is a tuple as long as a pass has rows."""
    _, block_size, num_groups = shape
    key, value, key_scale, value_scale = cache
    packed, q_scales, flaws, visible, num_packed = queries
    head_dim = out.shape[1]
    size = head_dim // num_groups
    width = packed.shape[1]
    share = parts * head_dim // width  # channels in an element
    padded = (num_packed + len(num_rows) - 1) // len(num_rows) * len(num_rows)
    packed[num_packed:padded] = 0
    visible[num_packed:padded] = 0
    sums = np.zeros((padded, head_dim), np.float32)
    peaks, totals = np.full(padded, -np.inf, np.float32), np.zeros(padded, np.float32)
    totals[:num_packed] = flaws[:num_packed]
    scores, weights = np.empty((ROWS, TILE), np.float32), np.empty((ROWS, TILE), np.int16)
    key_scales, value_scales = np.ones((parts * num_groups, TILE), np.float32), np.ones((num_groups, TILE), np.float32)
    bounds, steps = np.ones((num_groups, TILE), np.float32), np.empty((ROWS, 2), np.float32)
    seen, places = np.empty(ROWS, np.int64), np.empty(TILE // block_size, np.int64)
    for start in range(first * block_size, end, TILE):
        count = min(TILE, end - start)
        find(block_tables, table, start, count, head, shape, places)
        if len(key_scale):
            load_scales(key_scale, value_scale, places, block_size, count, key_scales, value_scales, bounds)
        ask_ahead(block_tables, table, start + TILE, end, head, shape, head_dim, key, value)
        for at in range(0, num_packed, len(num_rows)):
            scores[:] = 0.0
            for segment in range(parts * num_groups):
                q = at * width + segment * size // share
                k = segment % num_groups * size
                for token in range(0, count, TOKENS):
                    place = (places[token // block_size] + token % block_size) * head_dim + k
                    s = segment * TILE + token
                    add_scores(
                        packed, q, width, key, place, head_dim, size, key_scales, s, scores, token, num_rows
                    )
            for row in range(len(num_rows)):
                seen[row] = min(count, visible[at + row] - start)
                if seen[row] > 0:
                    steps[row] = soften_row(
                        scores, row * TILE, seen[row], count, q_scales[at + row], peaks, totals, at + row
                    )
                else:
                    scores[row] = 0.0
                    steps[row, 0], steps[row, 1] = 1.0, 0.0
            tile = value, places, block_size, count, value_scales, bounds
            _add(parts, scores, weights, tile, seen, steps, sums, at, num_rows)
    for row in range(num_packed):
        out[base + row] = sums[row]
        peak[base + row], total[base + row] = peaks[row], totals[row]


@by_type
def _add(parts, scores, weights, tile, seen, steps, sums, at, num_rows):
    if tile[0].dtype != types.int8:

        def floats(parts, scores, weights, tile, seen, steps, sums, at, num_rows):
            value, places, block_size, count, _, _ = tile
            add_values(scores, value, places, block_size, 0, sums.shape[1], count, steps, sums, at, num_rows)

        return floats

    def integers(parts, scores, weights, tile, seen, steps, sums, at, num_rows):
        value, places, block_size, count, scales, bounds = tile
        num_groups = len(bounds)
        size = sums.shape[1] // num_groups
        factors = steps.copy()
        for group in range(num_groups):
            for part in range(parts):
                for row in range(len(num_rows)):
                    bound = bounds[group, max(seen[row] - 1, 0)]
                    fresh, r, s = steps[row, 1], row * TILE, group * TILE
                    if part == 0:
                        factors[row, 0] = steps[row, 0]
                        factors[row, 1] = weigh_row(scores, r, count, scales, s, bound, fresh, weights, r, 0)
                    else:
                        factors[row, 0] = 1.0
                        factors[row, 1] = weigh_row(scores, r, count, scales, s, bound, fresh, weights, r, 1)
                add_values(weights, value, places, block_size, group * size, size, count, factors, sums, at, num_rows)

    return integers
