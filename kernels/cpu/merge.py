"""The parts of a row's attention, put together by their log-sum-exp; and the division that ends the softmax."""

from __future__ import annotations

import numpy as np

from kernels.cpu.jit import exact
from kernels.cpu.numerics import exp2, narrow


@exact
def merge(
    first,
    last,  # query rows [first, last)
    starts,  # [num_tokens + 1]: first part of each query row
    parts,  # [num_parts]: indices into row_tokens, in the order of the context
    row_items,  # [num_rows]: item of each of its rows
    items,
    num_kv_heads,
    partial,  # [num_rows * num_heads, head_dim], as `attend` leaves it
    peak,
    total,
    out,  # [num_tokens, num_heads, head_dim], floats as `numerics` takes them
):
    """Combine: out = Σ partial · 2^(m - max m) / Σ l · 2^(m - max m).

    Source: Flash-Decoding, Dao et al. 2023.
    """
    _, num_heads, head_dim = out.shape
    group = num_heads // num_kv_heads
    row_sum = np.empty((1, head_dim), np.float32)
    for token in range(first, last):
        for head in range(num_heads):
            highest = np.float32(-np.inf)
            for index in range(starts[token], starts[token + 1]):
                at = _place(parts[index], head, group, num_heads, items, row_items)
                highest = max(highest, peak[at])
            weight_sum = np.float32(0.0)
            row_sum[:] = 0.0
            for index in range(starts[token], starts[token + 1]):
                at = _place(parts[index], head, group, num_heads, items, row_items)
                weight = exp2(peak[at] - highest)
                weight_sum += weight * total[at]
                for channel in range(head_dim):
                    row_sum[0, channel] += weight * partial[at, channel]
            for channel in range(head_dim):
                out[token, head, channel] = narrow(row_sum[0, channel] / weight_sum, out)


@exact
def _place(row, head, group, num_heads, items, row_items):
    """Where `attend` put a head of a row of an item."""
    item = row_items[row]
    start, end = items[item, 3], items[item, 4]
    return start * num_heads + (head // group * (end - start) + row - start) * group + head % group
