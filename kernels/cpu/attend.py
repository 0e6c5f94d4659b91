"""Attention of some rows to a run of blocks: the one kernel behind decode, prefill and cascade.

A work item is a set of query rows and a range of one block table; the three differ only in how many rows share a range.
Decode: one row, and its range is a split of its context. Prefill: neighbouring rows of one request. Cascade: the rows
of all requests behind a common run of blocks. For one KV head the query heads of all its rows are packed, so that a
block of codes is read once for all of them.

For each 64 tokens, with q scaled by log2(e) / sqrt(head_dim):

    s = (q · codesᵀ) * key_scale;  t = max s;  m' = max(m, t);  p = 2^(s - t);  l = l * 2^(m - m') + Σ p * 2^(t - m')
    o = o * 2^(m - m') + (p * value_scale) · codes * 2^(t - m')

Codes are multiplied as integers, exactly, so that few and many rows come to the same bits. See `queries` and `softmax`.

Source: split-KV, Flash-Decoding, Dao et al. 2023.
"""

from __future__ import annotations

import numpy as np

from kernels.cpu.few import attend_few
from kernels.cpu.jit import exact
from kernels.cpu.many import attend_many
from kernels.cpu.queries import pack
from kernels.cpu.vectors import LANES

FEW = 8
"""Packed rows up to which keys and values are best taken as they lie in the cache, and not unpacked once for all."""


@exact
def attend(
    work,  # [num_work, 2]: (item, KV head)
    items,  # [num_items, 5]: block table, first block, end of the last visible token, first row, end of the rows
    row_tokens,  # [num_rows]: query rows of the items, one item after the other
    row_visible,  # [num_rows]: tokens of its request that a row sees
    block_tables,
    query,  # [num_tokens, num_heads, head_dim] fp32, scaled
    cache,  # (keys, values, their scales), flat: codes, or floats as `vectors` takes them; fp16 bits as uint16, or none
    shape,  # (num_kv_heads, block_size, num_groups)
    kind,  # [0, width] of what a packed query is made of: fp32, or int32 for pairs of 16 bits
    parts,  # of a query as integers, 1 or 2
    few,  # up to how many packed rows `attend_few` takes
    num_rows,  # a tuple: as long as it takes rows at once
    out,  # [num_rows * num_heads, head_dim] fp32: for each item, [num_kv_heads, rows, group, head_dim]
    peak,  # [num_rows * num_heads] fp32: m, laid out like out
    total,  # [num_rows * num_heads] fp32: l
):
    """Run the work: fills out (not yet divided by l), peak and total of its items and heads."""
    group = query.shape[1] // shape[0]
    most = 0
    for index in range(len(work)):
        most = max(most, items[work[index, 0], 4] - items[work[index, 0], 3])
    most = most * group + LANES  # all that a last vector or pass may take
    packed, visible = np.empty((most, kind.shape[1]), kind.dtype), np.empty(most, np.int64)
    q_scales, flaws = np.empty((2, most), np.float32)
    for index in range(len(work)):
        table, first, end, row, last_row = items[work[index, 0]]
        head = work[index, 1]
        num_packed = (last_row - row) * group
        base = row * group * shape[0] + head * num_packed
        pack(query, group, head, row_tokens, row_visible, row, last_row, parts, packed, q_scales, flaws, visible)
        rows = (packed, q_scales, flaws, visible, num_packed)
        if num_packed <= few:
            attend_few(
                block_tables, table, first, end, head, shape, cache, parts, rows, num_rows, out, peak, total, base
            )
        else:
            attend_many(block_tables, table, first, end, head, shape, cache, parts, rows, out, peak, total, base)
