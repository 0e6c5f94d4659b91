"""Attention of some rows to a run of blocks: the one kernel behind decode, prefill and cascade.

A work item is a set of query rows and a range of one block table; the three differ only in how many rows share a range.
Decode: one row, and its range is a split of its context. Prefill: neighbouring rows of one request. Cascade: the rows
of all requests behind a common run of blocks. For one KV head the query heads of all its rows are packed, so that a
block of codes is read once for all of them.

For each 64 tokens, with q scaled by log2(e) / sqrt(head_dim):

    s = (q · codesᵀ) * key_scale;  m' = max(m, s);  p = 2^(s - m');  l = l * 2^(m - m') + Σ p
    o = o * 2^(m - m') + (p * value_scale) · codes

Source: online softmax, Milakov and Gimelshein 2018; split-KV, Flash-Decoding, Dao et al. 2023.
"""

from __future__ import annotations

import numpy as np

from kernels.cpu.jit import fast
from kernels.cpu.numerics import exp2, half_to_float
from kernels.cpu.simd import ROWS, add_scores, add_values, dequantize, prefetch, soften

_TILE = 64  # tokens between two softmax steps, in as many blocks as that takes: each step waits for its own sums
_MANY = 2 * ROWS  # packed rows beyond which a block is better unpacked once, keys transposed: no sums over lanes then
_TOKENS = 4  # tokens that `add_scores` takes at once


@fast
def attend(
    work,  # [num_work, 2]: (item, KV head)
    items,  # [num_items, 5]: block table, first block, end of the last visible token, first row, end of the rows
    row_tokens,  # [num_rows]: query rows of the items, one item after the other
    row_visible,  # [num_rows]: tokens of its request that a row sees
    block_tables,
    query,  # [num_tokens, num_heads, head_dim] fp32, scaled
    key,  # flat: codes, or floats as `simd` takes them
    value,
    key_scale,  # flat uint16 (fp16 bits), [num_blocks, num_kv_heads, block_size, num_groups]; empty: not quantized
    value_scale,
    shape,  # (num_kv_heads, block_size, num_groups)
    out,  # [num_rows * num_heads, head_dim] fp32: for each item, [num_kv_heads, rows, group, head_dim]
    peak,  # [num_rows * num_heads] fp32: m, laid out like out
    total,  # [num_rows * num_heads] fp32: l
):
    """Run the work: fills out (not yet divided by l), peak and total of its items and heads."""
    num_kv_heads, block_size, num_groups = shape
    _, num_heads, head_dim = query.shape
    group = num_heads // num_kv_heads
    most = 0
    for index in range(len(work)):
        most = max(most, items[work[index, 0], 4] - items[work[index, 0], 3])
    packed, visible = np.empty((most * group, head_dim), np.float32), np.empty(most * group, np.int64)
    key_scales = np.ones((num_groups, _TILE), np.float32)
    value_scales = np.ones((num_groups, _TILE), np.float32)
    # two-dimensional, for numba vectorizes no loop over a sum of indices: it may be negative
    keys, values = np.empty((head_dim, _TILE), np.float32), np.empty((_TILE, head_dim), np.float32)
    scores, scaled = np.empty((ROWS, _TILE), np.float32), np.empty((ROWS, _TILE), np.float32)
    places = np.empty(_TILE // block_size, np.int64)
    for index in range(len(work)):
        table, first, end, row, last_row = items[work[index, 0]]
        head = work[index, 1]
        num_packed = (last_row - row) * group
        base = row * num_heads + head * num_packed
        _pack(query, group, head, row_tokens, row_visible, row, last_row, packed, visible)
        out[base : base + num_packed] = 0.0
        peak[base : base + num_packed] = -np.inf
        total[base : base + num_packed] = 0.0
        many = num_packed > _MANY
        for start in range(first * block_size, end, _TILE):
            count = min(_TILE, end - start)
            _find(block_tables, table, start, count, head, num_kv_heads, block_size, places)
            if len(key_scale):
                _load_scales(key_scale, places, block_size, count, key_scales)
                _load_scales(value_scale, places, block_size, count, value_scales)
            if many:
                _unpack(key, value, places, block_size, count, key_scales, value_scales, keys, values)
            _ask_ahead(block_tables, table, start + _TILE, end, head, shape, head_dim, key, value)
            for at in range(0, num_packed, ROWS):
                num_rows = min(ROWS, num_packed - at)
                scores[:num_rows] = 0.0
                if many:
                    add_rows(packed, at * head_dim, head_dim, keys, 0, _TILE, _TILE, head_dim, scores, 0, num_rows)
                else:
                    _score(packed, at, num_rows, key, places, block_size, key_scales, count, scores)
                for each in range(num_rows):
                    seen = min(count, visible[at + each] - start)
                    _soften(scores, each, seen, count, peak, total, base + at + each, out)
                if many:
                    o = (base + at) * head_dim
                    add_rows(scores, 0, _TILE, values, 0, head_dim, head_dim, count, out, o, num_rows)
                else:
                    _add(scores, scaled, num_rows, value, places, block_size, value_scales, count, out, base + at)


@fast
def _pack(query, group, head, row_tokens, row_visible, row, last_row, packed, visible):
    """Lay the query heads of one KV head, of all rows of an item, one below the other."""
    for at in range((last_row - row) * group):
        token = row_tokens[row + at // group]
        visible[at] = row_visible[row + at // group]
        for channel in range(query.shape[2]):
            packed[at, channel] = query[token, head * group + at % group, channel]


@fast
def _find(block_tables, table, start, count, head, num_kv_heads, block_size, places):
    """The place of a tile's blocks in the cache, in tokens."""
    for block in range((count + block_size - 1) // block_size):
        block_id = block_tables[table, start // block_size + block]
        places[block] = (block_id * num_kv_heads + head) * block_size


@fast
def _ask_ahead(block_tables, table, start, end, head, shape, head_dim, key, value):
    """Prefetch the tile from start on."""
    num_kv_heads, block_size, _ = shape
    for position in range(start, min(end, start + _TILE), block_size):
        at = (block_tables[table, position // block_size] * num_kv_heads + head) * block_size * head_dim
        prefetch(key, at, block_size * head_dim)
        prefetch(value, at, block_size * head_dim)


@fast
def _load_scales(scale, places, block_size, count, out):
    """Widen the scales of a tile's tokens, a group after the other."""
    num_groups = len(out)
    for start in range(0, count, block_size):
        at = places[start // block_size] * num_groups
        for group in range(num_groups):
            for token in range(start, min(count, start + block_size)):
                out[group, token] = half_to_float(scale[at + (token - start) * num_groups + group])


@fast
def _score(packed, first, num_rows, key, places, block_size, scales, count, scores):
    """Add to scores those of up to 4 packed rows, the keys' scales applied; garbage past count."""
    num_groups = len(scales)
    head_dim = packed.shape[1]
    size = head_dim // num_groups
    for group in range(num_groups):
        q = first * head_dim + group * size
        for token in range(0, count, _TOKENS):
            k = (places[token // block_size] + token % block_size) * head_dim + group * size
            s = group * _TILE + token
            if num_rows == 4:
                add_scores(packed, q, key, k, head_dim, size, scales, s, scores, token, _TILE, 4)
            elif num_rows == 3:
                add_scores(packed, q, key, k, head_dim, size, scales, s, scores, token, _TILE, 3)
            elif num_rows == 2:
                add_scores(packed, q, key, k, head_dim, size, scales, s, scores, token, _TILE, 2)
            else:
                add_scores(packed, q, key, k, head_dim, size, scales, s, scores, token, _TILE, 1)


@fast
def _soften(scores, row, seen, count, peak, total, at, out):
    """Turn the scores of a row into weights below its new peak, and shrink what lay below the old one."""
    if seen <= 0:
        for token in range(count):
            scores[row, token] = 0.0
        return
    old_peak = peak[at]
    new_peak, added = soften(scores, row * _TILE, seen, count, old_peak)
    shrink = exp2(old_peak - new_peak)
    total[at] = total[at] * shrink + added
    peak[at] = new_peak
    if shrink != 1.0:
        for channel in range(out.shape[1]):
            out[at, channel] *= shrink


@fast
def _add(weights, scaled, num_rows, value, places, block_size, scales, count, out, out_row):
    """Add the weighted values of a tile to up to 4 rows."""
    num_groups, head_dim = len(scales), out.shape[1]
    size = head_dim // num_groups
    for group in range(num_groups):
        for row in range(num_rows):
            for token in range(count):
                scaled[row, token] = weights[row, token] * scales[group, token]
        o = out_row * head_dim + group * size
        for start in range(0, count, block_size):
            v = places[start // block_size] * head_dim + group * size
            tokens = min(block_size, count - start)
            add_rows(scaled, start, _TILE, value, v, head_dim, size, tokens, out, o, num_rows)


@fast
def add_rows(weights, w_at, w_stride, values, v_at, stride, size, count, out, o_at, num_rows):
    """Call `add_values` with the literal it wants."""
    if num_rows == 4:
        add_values(weights, w_at, w_stride, values, v_at, stride, size, count, out, o_at, 4)
    elif num_rows == 3:
        add_values(weights, w_at, w_stride, values, v_at, stride, size, count, out, o_at, 3)
    elif num_rows == 2:
        add_values(weights, w_at, w_stride, values, v_at, stride, size, count, out, o_at, 2)
    else:
        add_values(weights, w_at, w_stride, values, v_at, stride, size, count, out, o_at, 1)


@fast
def _unpack(key, value, places, block_size, count, key_scales, value_scales, keys, values):
    """Dequantize a tile to fp32, the keys transposed: keys [head_dim, tokens], values [tokens, head_dim]."""
    num_groups = len(key_scales)
    head_dim = len(keys)
    size = head_dim // num_groups
    row = np.empty((1, head_dim), np.float32)
    for token in range(count):
        at = (places[token // block_size] + token % block_size) * head_dim
        for group in range(num_groups):
            first = group * size
            dequantize(key, at + first, size, key_scales[group, token], row, first)
            dequantize(value, at + first, size, value_scales[group, token], values, token * head_dim + first)
        for channel in range(head_dim):
            keys[channel, token] = row[0, channel]
    for channel in range(head_dim):
        for token in range(count, _TILE):
            keys[channel, token] = 0.0
