"""The inner loop of all attention kernels: some rows of queries against one run of one block table. Device code only.

    scores = (q · codes_K) * scale_K * softmax_scale;  output = (softmax(scores) * scale_V) · codes_V

Scales stay out of the products: K's are factors of the scores, V's of the weights, so that a code is only ever
converted, never multiplied. The softmax runs online in base 2. Tiles wholly inside the run are read without masks; only
the tiles that reach its end, or beyond a row's own position, pay for them. There every load is masked, those of the
scales as well: 0 * NaN is NaN.

With SPLIT_QUERY the product of queries and keys runs on int8 matrix units: q = step * (256 * high + low) with
|high| <= 127 and -128 <= low < 128, 16 bits, which is more than the 8 of bf16. The two parts are rows of one product,
which pads its rows to 16 anyway, so keys need no conversion at all; that halves the instructions a tile costs.

Source: FlashAttention-2, Dao 2023 (online softmax); PagedAttention, Kwon et al. 2023.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_queries(
    query_ptr, rows, live, scale,
    HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, NUM_GROUPS: tl.constexpr, SPLIT_QUERY: tl.constexpr,
    FULL_PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the queries as the product wants them, and the factor of each row's scores, fp32 like rows.

    rows: int64, token * num_heads + head; [R], split: [2 * R], every row twice, R apart. Queries: [R, HEAD_PAD]; split:
    int8 [2 * R, HEAD_PAD], high parts first; grouped: [groups, R, group].
    """
    channels = tl.arange(0, HEAD_PAD)
    inside = live[:, None] & (channels < HEAD_DIM)[None, :]
    query = tl.load(query_ptr + rows[:, None] * HEAD_DIM + channels[None, :], mask=inside, other=0.0)
    factor = tl.zeros(rows.shape, tl.float32) + scale
    if FULL_PRECISION:
        query = query.to(tl.float32)
    if SPLIT_QUERY:
        x = query.to(tl.float32)
        # a row of zeros, or of numbers too small to matter, keeps a step that can be divided by
        step = tl.maximum(tl.max(tl.abs(x), axis=1) / 32512.0, 1e-30)
        whole = round_half_even(tl.div_rn(x, tl.broadcast_to(step[:, None], x.shape)))
        high = tl.floor(whole / 256.0 + 0.5)  # halves upwards, so that what is left is in [-128, 127]
        is_high = tl.arange(0, rows.shape[0]) < rows.shape[0] // 2
        query = tl.where(is_high[:, None], high, whole - high * 256.0).to(tl.int8)
        factor *= tl.where(is_high, step * 256.0, step)
    elif NUM_GROUPS > 1:
        groups = tl.reshape(query, [rows.shape[0], pad(NUM_GROUPS), HEAD_PAD // pad(NUM_GROUPS)])
        query = tl.permute(groups, (1, 0, 2))
    return query, factor


@triton.jit
def attend(
    query, factor, limits, table_ptr, kv_head, begin, whole, end, open_slot, open_begin,
    key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, key_open_ptr,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    NUM_GROUPS: tl.constexpr, QUANTIZED: tl.constexpr, SPLIT_QUERY: tl.constexpr, FULL_PRECISION: tl.constexpr,
    R: tl.constexpr, BLOCK_N: tl.constexpr, PER_CHANNEL: tl.constexpr,
):  # fmt: skip
    """Attend to the positions [begin, end) of a block table; whole: the end of the tiles that need no mask.

    query, factor: of `load_queries`; factor [R], split: [2 * R]. limits: [R], the first position that a row does not
    see; every row sees `begin`, a multiple of BLOCK_SIZE. One of BLOCK_SIZE and BLOCK_N divides the other.
    open_slot, open_begin: per_channel only, the open block that holds the keys from open_begin to end, and where it
    begins; only rows of that block may attend.

    Returns the output [R, HEAD_PAD] and the logarithm in base 2 of the sum of the weights [R], both fp32.
    """
    closed = end
    if PER_CHANNEL:
        closed = tl.minimum(end, open_begin)
        whole = begin + (closed - begin) // BLOCK_N * BLOCK_N
    row_max = tl.full([R], float("-inf"), tl.float32)
    row_sum = tl.zeros([R], tl.float32)
    if NUM_GROUPS > 1:
        output = tl.zeros([pad(NUM_GROUPS), R, HEAD_PAD // pad(NUM_GROUPS)], tl.float32)
    else:
        output = tl.zeros([R, HEAD_PAD], tl.float32)
    for start in range(begin, whole, BLOCK_N):
        output, row_max, row_sum = _tile(
            output, row_max, row_sum, query, factor, limits, table_ptr, kv_head, start, closed, open_slot,
            key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, key_open_ptr, NUM_KV_HEADS, HEAD_DIM, HEAD_PAD,
            BLOCK_SIZE, NUM_GROUPS, QUANTIZED, SPLIT_QUERY, FULL_PRECISION, R, BLOCK_N, PER_CHANNEL, False, False,
        )  # fmt: skip
    for start in tl.range(whole, closed, BLOCK_N, num_stages=1):
        output, row_max, row_sum = _tile(
            output, row_max, row_sum, query, factor, limits, table_ptr, kv_head, start, closed, open_slot,
            key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, key_open_ptr, NUM_KV_HEADS, HEAD_DIM, HEAD_PAD,
            BLOCK_SIZE, NUM_GROUPS, QUANTIZED, SPLIT_QUERY, FULL_PRECISION, R, BLOCK_N, PER_CHANNEL, True, False,
        )  # fmt: skip
    if PER_CHANNEL:
        for start in tl.range(open_begin, end, BLOCK_N, num_stages=1):
            output, row_max, row_sum = _tile(
                output, row_max, row_sum, query, factor, limits, table_ptr, kv_head, start, end, open_slot,
                key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, key_open_ptr, NUM_KV_HEADS, HEAD_DIM, HEAD_PAD,
                BLOCK_SIZE, NUM_GROUPS, QUANTIZED, SPLIT_QUERY, FULL_PRECISION, R, BLOCK_N, PER_CHANNEL, True, True,
            )  # fmt: skip
    if NUM_GROUPS > 1:
        output = tl.reshape(tl.permute(output, (1, 0, 2)), [R, HEAD_PAD])
    return output / row_sum[:, None], row_max + tl.log2(row_sum)


@triton.jit
def _tile(
    output, row_max, row_sum, query, factor, limits, table_ptr, kv_head, start, end, open_slot,
    key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, key_open_ptr,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    NUM_GROUPS: tl.constexpr, QUANTIZED: tl.constexpr, SPLIT_QUERY: tl.constexpr, FULL_PRECISION: tl.constexpr,
    R: tl.constexpr, BLOCK_N: tl.constexpr, PER_CHANNEL: tl.constexpr, MASKED: tl.constexpr, OPEN: tl.constexpr,
):  # fmt: skip
    """BLOCK_N tokens more."""
    tokens = tl.arange(0, BLOCK_N)
    live = start + tokens < end
    first = 0  # offset of the tile in its first block
    if BLOCK_N < BLOCK_SIZE:
        first = start % BLOCK_SIZE
    indices = table_ptr + start // BLOCK_SIZE + (first + tokens) // BLOCK_SIZE
    blocks = (tl.load(indices, mask=live, other=0) if MASKED else tl.load(indices)).to(tl.int64)
    # of a token in its block, in rows of one token and head; the same in each tile, where tiles are whole blocks
    offsets = kv_head.to(tl.int32) * BLOCK_SIZE + (first + tokens) % BLOCK_SIZE
    keys = _load_keys(
        blocks, offsets, live, kv_head, open_slot, key_ptr, key_scale_ptr, key_open_ptr,
        NUM_KV_HEADS, HEAD_DIM, HEAD_PAD, BLOCK_SIZE, PER_CHANNEL, MASKED, OPEN,
    )  # fmt: skip
    values = _load_rows(value_ptr, blocks, offsets, live, NUM_KV_HEADS * BLOCK_SIZE, HEAD_DIM, HEAD_PAD, MASKED)
    if QUANTIZED and not PER_CHANNEL:
        key_scales = _load_scales(key_scale_ptr, blocks, offsets, live, NUM_KV_HEADS * BLOCK_SIZE, NUM_GROUPS, MASKED)
    if QUANTIZED:
        value_scales = _load_scales(
            value_scale_ptr, blocks, offsets, live, NUM_KV_HEADS * BLOCK_SIZE, NUM_GROUPS, MASKED
        )

    if NUM_GROUPS > 1:
        grouped = tl.reshape(keys.to(query.dtype), [BLOCK_N, pad(NUM_GROUPS), HEAD_PAD // pad(NUM_GROUPS)])
        parts = tl.dot(query, tl.permute(grouped, (1, 2, 0)), input_precision="ieee")  # [groups, R, BLOCK_N]
        scores = tl.sum(parts * tl.permute(key_scales, (1, 0))[:, None, :], axis=0) * factor[:, None]
    else:
        if SPLIT_QUERY:
            parts = tl.dot(query, tl.trans(keys)).to(tl.float32) * factor[:, None]
            scores = tl.sum(tl.reshape(parts, [2, R, BLOCK_N]), axis=0)
        else:
            scores = tl.dot(query, tl.trans(keys.to(query.dtype)), input_precision="ieee") * factor[:, None]
        if QUANTIZED and not PER_CHANNEL:
            scores *= key_scales[None, :]
    if MASKED:
        visible = live[None, :] & ((start + tokens)[None, :] < limits[:, None])
        scores = tl.where(visible, scores, float("-inf"))

    new_max = tl.maximum(row_max, tl.max(scores, axis=1))
    weights = tl.exp2(scores - new_max[:, None])
    shrink = tl.exp2(row_max - new_max)
    row_sum = row_sum * shrink + tl.sum(weights, axis=1)
    if NUM_GROUPS > 1:
        parts = weights[None, :, :] * tl.permute(value_scales, (1, 0))[:, None, :]
        grouped = tl.reshape(values, [BLOCK_N, pad(NUM_GROUPS), HEAD_PAD // pad(NUM_GROUPS)])
        output = _accumulate(output * shrink[None, :, None], parts, tl.permute(grouped, (1, 0, 2)), FULL_PRECISION)
    else:
        if QUANTIZED:
            weights *= value_scales[None, :]
        output = _accumulate(output * shrink[:, None], weights, values, FULL_PRECISION)
    return output, new_max, row_sum


@triton.jit
def _accumulate(output, weights, values, FULL_PRECISION: tl.constexpr):
    """Return output + weights · values; codes in bf16, for a weight times a scale can be too small for fp16."""
    if FULL_PRECISION:
        output = tl.dot(weights, values.to(tl.float32), output, input_precision="ieee")
    elif values.dtype == tl.int8:
        output = tl.dot(weights.to(tl.bfloat16), values.to(tl.bfloat16), output)
    else:
        output = tl.dot(weights.to(values.dtype), values, output)
    return output


@triton.jit
def _load_keys(
    blocks, offsets, live, kv_head, open_slot, key_ptr, key_scale_ptr, key_open_ptr,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    PER_CHANNEL: tl.constexpr, MASKED: tl.constexpr, OPEN: tl.constexpr,
):  # fmt: skip
    """[BLOCK_N, HEAD_PAD]: keys of a tile, without the scales that are a token's."""
    if OPEN:
        opened = tl.zeros_like(blocks) + open_slot
        keys = _load_rows(key_open_ptr, opened, offsets, live, NUM_KV_HEADS * BLOCK_SIZE, HEAD_DIM, HEAD_PAD, MASKED)
    else:
        keys = _load_rows(key_ptr, blocks, offsets, live, NUM_KV_HEADS * BLOCK_SIZE, HEAD_DIM, HEAD_PAD, MASKED)
        if PER_CHANNEL:
            heads = blocks * NUM_KV_HEADS + kv_head
            keys = keys.to(tl.float32) * _load_channels(key_scale_ptr, heads, live, HEAD_DIM, HEAD_PAD)
    return keys


@triton.jit
def _load_rows(
    ptr, blocks, offsets, live, STRIDE_BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """[BLOCK_N, HEAD_PAD]: keys or values of a tile. blocks are int64: a pool has more than 2^31 bytes."""
    channels = tl.arange(0, HEAD_PAD)
    inner = offsets[:, None] * HEAD_DIM + channels[None, :]
    rows = ptr + inner + blocks[:, None] * (STRIDE_BLOCK * HEAD_DIM)
    if MASKED:
        loaded = tl.load(rows, mask=live[:, None] & (channels < HEAD_DIM)[None, :], other=0)
    elif HEAD_PAD != HEAD_DIM:
        loaded = tl.load(rows, mask=(channels < HEAD_DIM)[None, :] & (offsets >= 0)[:, None], other=0)
    else:
        loaded = tl.load(rows)
    return loaded


@triton.jit
def _load_channels(ptr, heads, live, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr):
    """[BLOCK_N, HEAD_PAD] fp32: per_channel scales of keys; heads: block * NUM_KV_HEADS + head of each token."""
    channels = tl.arange(0, HEAD_PAD)
    inside = live[:, None] & (channels < HEAD_DIM)[None, :]
    return tl.load(ptr + heads[:, None] * HEAD_DIM + channels[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _load_scales(
    ptr, blocks, offsets, live, STRIDE_BLOCK: tl.constexpr, NUM_GROUPS: tl.constexpr, MASKED: tl.constexpr
):
    """fp32 scales of a tile: [BLOCK_N], or [BLOCK_N, groups]; what is masked is 0, never what lies there."""
    if NUM_GROUPS > 1:
        group = tl.arange(0, pad(NUM_GROUPS))
        inside = (group < NUM_GROUPS)[None, :] & live[:, None]
        inner = offsets[:, None] * NUM_GROUPS + group[None, :]
        scales = tl.load(ptr + inner + blocks[:, None] * (STRIDE_BLOCK * NUM_GROUPS), mask=inside, other=0.0)
    elif MASKED:
        scales = tl.load(ptr + offsets + blocks * STRIDE_BLOCK, mask=live, other=0.0)
    else:
        scales = tl.load(ptr + offsets + blocks * STRIDE_BLOCK)
    return scales.to(tl.float32)


@triton.jit
def round_half_even(x):
    """Round |x| < 2^22 to integers: 1.5 * 2^23 leaves no bit for a fraction, and fp32 sums round half to even."""
    return (x + 12582912.0) - 12582912.0


@triton.constexpr_function
def pad(size: int) -> int:
    """The power of two that a dimension is padded to."""
    return int(triton.next_power_of_2(size))
