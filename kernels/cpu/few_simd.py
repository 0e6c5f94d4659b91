"""Vector code for few query rows: keys and values are read from the cache as they lie, and widened once for all rows.

Accumulators stay in registers for up to 4 rows; left to itself numba's vectorizer reloads what it cannot prove unchanged.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.cpu import softmax
from kernels.cpu.jit import intrinsic
from kernels.cpu.vectors import (
    F32,
    FLOATS,
    I8,
    I16,
    I32,
    INTS,
    LANES,
    SHORTS,
    as_floats,
    data_of,
    dot,
    fma,
    is_half,
    larger,
    literal,
    load,
    number,
    pieces,
    reduce_vector,
    reduce_vectors,
    save,
    shuffle,
    splat,
    total_of,
    widen,
)

ROWS = 4
"""Most query rows of one pass: 4 rows and 4 tokens are 16 accumulators of the 32 registers, and one tidy reduction."""
TOKENS = LANES // ROWS
"""Keys of one pass."""
_FOUR = ir.VectorType(F32, TOKENS)
_CODES = ir.VectorType(I8, 2 * LANES)


@intrinsic
def add_scores(
    _context: Any,
    query: Any,
    q_at: Any,
    q_stride: Any,
    keys: Any,
    k_at: Any,
    k_stride: Any,
    size: Any,
    scales: Any,
    s_at: Any,
    out: Any,
    o_at: Any,
    rows: Any,
) -> Any:
    """Add to scores the products of as many query rows as the tuple `rows` has elements, at most 4, with 4 cached keys.

    out[o_at + TILE * row + token] +=
        scales[s_at + token] * sum over c < size of query[q_at + row * q_stride + c] * keys[k_at + token * k_stride + c]

    Args:
        query: fp32, or int32 for pairs of 16 bits where the keys are codes.
        q_at: its first element, in memory order; likewise k_at, s_at and o_at.
        q_stride: elements from one row to the next.
        keys: codes; or floats as `widen` takes them.
        k_at: 4 keys from there must be inside the cache, whatever they hold.
        k_stride: elements from one key to the next.
        size: channels, a multiple of 16, or of 32 for codes.
        scales: fp32, one a key.
        s_at: see q_at.
        out: fp32.
        o_at: see q_at.
        rows: see above.
    """
    num_rows = rows.count
    codes = query.dtype == types.int32

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        q_data, k_data, s_data, o_data = data_of(context, builder, signature, args, 0, 3, 7, 9)
        _, q_start, q_step, _, k_start, k_step, channels, _, s_start, _, o_start, _ = args
        kind = INTS if codes else FLOATS
        sums = [cgutils.alloca_once_value(builder, ir.Constant(kind, None)) for _ in range(LANES)]
        with cgutils.for_range(builder, builder.sdiv(channels, number(2 * LANES if codes else LANES))) as chunk:
            at = builder.mul(chunk.index, number(LANES))
            queries = [
                load(builder, q_data, total_of(builder, q_start, at, builder.mul(q_step, number(row))), kind)
                for row in range(num_rows)
            ]
            for token in range(TOKENS):
                start = builder.add(k_start, builder.mul(k_step, number(token)))
                if codes:
                    place = builder.add(start, builder.mul(at, number(2)))
                    key = builder.sext(load(builder, k_data, place, _CODES), SHORTS)
                else:
                    key = widen(builder, k_data, builder.add(start, at), half=is_half(signature.args[3]))
                for row in range(num_rows):
                    total = sums[row * TOKENS + token]
                    builder.store(dot(builder, builder.load(total), queries[row], key), total)
        reduced = as_floats(builder, reduce_vectors(builder, [builder.load(total) for total in sums]))
        scale = load(builder, s_data, s_start, _FOUR)
        for row in range(num_rows):
            four = shuffle(builder, reduced, reduced, [row * TOKENS + token for token in range(TOKENS)])
            place = builder.add(o_start, number(row * softmax.TILE))
            save(builder, fma(builder, four, scale, load(builder, o_data, place, _FOUR)), o_data, place)
        return context.get_dummy_value()

    arguments = (query, q_at, q_stride, keys, k_at, k_stride, size, scales, s_at, out, o_at, rows)
    return types.void(*arguments), generate


@intrinsic
def soften_row(
    _context: Any, scores: Any, at: Any, seen: Any, count: Any, q_scale: Any, peak: Any, total: Any, state_at: Any
) -> Any:
    """Turn a row's scores of a tile into weights below the tile's peak, and take the step of `softmax`.

    Args:
        scores: fp32; 16 at a time are read and written.
        at: the first one.
        seen: tokens of the tile that the row sees, at least 1.
        count: at least seen; from there on weights are 0.
        q_scale: what the scores are to be multiplied with.
        peak: fp32; and total.
        total: see peak.
        state_at: the row's.

    Returns:
        Factors on what was, and on what the tile adds.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data, peaks, totals = data_of(context, builder, signature, args, 0, 5, 6)
        _, start, num_seen, num_all, scale, _, _, state = args
        peak_at, total_at = builder.gep(peaks, [state]), builder.gep(totals, [state])
        best = cgutils.alloca_once_value(builder, softmax.LOWEST)
        masses = cgutils.alloca_once_value(builder, ir.Constant(INTS, None))
        lanes = ir.Constant(INTS, list(range(LANES)))
        limit = splat(builder, builder.trunc(num_seen, I32))

        def place(chunk: Any) -> tuple[Any, Any]:
            offset = builder.mul(chunk.index, number(LANES))
            token = builder.add(splat(builder, builder.trunc(offset, I32)), lanes)
            return builder.add(start, offset), builder.icmp_signed("<", token, limit)

        with cgutils.for_range(builder, pieces(builder, num_all)) as chunk:
            offset, visible = place(chunk)
            score = builder.fmul(load(builder, data, offset), splat(builder, scale))
            save(builder, score, data, offset)
            score = builder.select(visible, score, softmax.LOWEST)
            builder.store(larger(builder, score, builder.load(best)), best)
        highest = splat(builder, reduce_vector(builder, "fmax", builder.load(best)))
        old_peak = splat(builder, builder.load(peak_at))
        active = ir.Constant(ir.VectorType(ir.IntType(1), LANES), [1] * LANES)
        new_peak, shrink, fresh = softmax.step(builder, old_peak, highest, active)
        with cgutils.for_range(builder, pieces(builder, num_all)) as chunk:
            offset, visible = place(chunk)
            p = softmax.weight(builder, load(builder, data, offset), highest, visible)
            save(builder, p, data, offset)
            builder.store(builder.add(builder.load(masses), softmax.mass(builder, p)), masses)
        mass = splat(builder, reduce_vector(builder, "add", builder.load(masses)))
        new_total = softmax.new_total(builder, splat(builder, builder.load(total_at)), mass, shrink, fresh)
        first = ir.Constant(I32, 0)
        builder.store(builder.extract_element(new_peak, first), peak_at)
        builder.store(builder.extract_element(new_total, first), total_at)
        factors = (builder.extract_element(shrink, first), builder.extract_element(fresh, first))
        return context.make_tuple(builder, signature.return_type, factors)

    arguments = (scores, at, seen, count, q_scale, peak, total, state_at)
    return types.UniTuple(types.float32, 2)(*arguments), generate


@intrinsic
def weigh_row(
    _context: Any,
    p: Any,
    p_at: Any,
    count: Any,
    scales: Any,
    s_at: Any,
    bound: Any,
    fresh: Any,
    weights: Any,
    w_at: Any,
    low: Any,
) -> Any:
    """Turn p of `count` tokens into weights, int16; returns the factor on their sums. See `softmax`.

    low: 0 or 1, literal: which part of the weights.
    """
    rest = bool(literal(low))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data, s, out = data_of(context, builder, signature, args, 0, 3, 7)
        limit = splat(builder, args[5])
        unit = softmax.unit_of(builder, limit)
        with cgutils.for_range(builder, pieces(builder, args[2])) as chunk:
            at = builder.mul(chunk.index, number(LANES))
            value, scale = (load(builder, d, builder.add(a, at)) for d, a in ((data, args[1]), (s, args[4])))
            whole = softmax.integer_weight(builder, value, scale, unit, low=rest)
            save(builder, builder.trunc(whole, ir.VectorType(I16, LANES)), out, builder.add(args[8], at))
        factor = softmax.value_factor(builder, splat(builder, args[6]), limit, low=rest)
        return builder.extract_element(factor, ir.Constant(I32, 0))

    return types.float32(p, p_at, count, scales, s_at, bound, fresh, weights, w_at, low), generate


@intrinsic
def add_values(
    _context: Any,
    weights: Any,
    values: Any,
    places: Any,
    block_size: Any,
    first: Any,
    size: Any,
    count: Any,
    steps: Any,
    out: Any,
    out_row: Any,
    rows: Any,
) -> Any:
    """Add a tile's weighted values to as many output rows as the tuple `rows` has elements, at most 4.

    out[out_row + row, first + c] = out[...] * steps[row, 0]
        + steps[row, 1] * sum over t < count of weights[TILE row + t] * values[place of t, first + c]

    Args:
        weights: fp32, or int16 where the values are codes.
        values: codes; or floats as `widen` takes them.
        places: where the tile's blocks begin, in tokens.
        block_size: tokens a block.
        first: channel.
        size: channels, a multiple of 16, or of 32 for codes.
        count: tokens; of an odd count of codes one more is read, which the block has.
        steps: fp32, [ROWS, 2].
        out: fp32, [rows, head_dim].
        out_row: first row.
        rows: see above.
    """
    num_rows = rows.count
    codes = weights.dtype == types.int16
    kind, taken = (INTS, 2) if codes else (FLOATS, 1)  # tokens, and vectors of channels, of one accumulation

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        w_data, v_data, p_data, s_data, o_data = data_of(context, builder, signature, args, 0, 1, 2, 7, 8)
        _, _, _, block, start, channels, tokens, _, _, row_start, _ = args
        head_dim = builder.extract_value(builder.extract_value(args[8], 5), 1)
        if codes:
            w_data = builder.bitcast(w_data, I32.as_pointer())  # a pair at a time
        sums = [[cgutils.alloca_once(builder, kind) for _ in range(taken)] for _ in range(num_rows)]
        with cgutils.for_range(builder, builder.sdiv(channels, number(taken * LANES))) as chunk:
            at = builder.add(start, builder.mul(chunk.index, number(taken * LANES)))
            for total in (each for row in sums for each in row):
                builder.store(ir.Constant(kind, None), total)
            with cgutils.for_range(
                builder, builder.sdiv(builder.add(tokens, builder.sub(block, number(1))), block)
            ) as b:
                done = builder.mul(b.index, block)
                left = builder.sub(tokens, done)
                left = builder.select(builder.icmp_signed("<", left, block), left, block)
                base = builder.add(builder.mul(builder.load(builder.gep(p_data, [b.index])), head_dim), at)
                with cgutils.for_range(builder, pieces(builder, left, taken)) as step:
                    token = builder.mul(step.index, number(taken))
                    place = builder.add(base, builder.mul(token, head_dim))
                    if codes:
                        found = _pairs(builder, v_data, place, head_dim)
                    else:
                        found = [widen(builder, v_data, place, half=is_half(signature.args[1]))]
                    pair = builder.sdiv(builder.add(done, token), number(taken))
                    for row in range(num_rows):
                        at_row = builder.add(pair, number(row * softmax.TILE // taken))
                        weight = splat(builder, builder.load(builder.gep(w_data, [at_row])))
                        for value, total in zip(found, sums[row], strict=True):
                            builder.store(dot(builder, builder.load(total), value, weight), total)
            for row in range(num_rows):
                offset = builder.add(builder.mul(builder.add(row_start, number(row)), head_dim), at)
                shrink, fresh = (
                    splat(builder, builder.load(builder.gep(s_data, [number(2 * row + i)]))) for i in range(2)
                )
                totals = [builder.load(total) for total in sums[row]]
                for index, total in enumerate(_in_order(builder, totals) if codes else totals):
                    where = builder.add(offset, number(index * LANES))
                    old = builder.fmul(load(builder, o_data, where), shrink)
                    save(builder, fma(builder, as_floats(builder, total), fresh, old), o_data, where)
        return context.get_dummy_value()

    arguments = (weights, values, places, block_size, first, size, count, steps, out, out_row, rows)
    return types.void(*arguments), generate


def _pairs(builder: Any, data: Any, at: Any, stride: Any) -> list[Any]:
    """32 channels of two tokens as pairs of 16 bits, in the order that costs least: quarters of a register interleaved."""
    low, high = (builder.sext(load(builder, data, a, _CODES), SHORTS) for a in (at, builder.add(at, stride)))
    orders = [
        [lane for quarter in range(0, 32, 8) for i in range(quarter + half, quarter + half + 4) for lane in (i, i + 32)]
        for half in (0, 4)
    ]
    return [builder.bitcast(shuffle(builder, low, high, order), INTS) for order in orders]


def _in_order(builder: Any, sums: list[Any]) -> list[Any]:
    """The sums of `_pairs` by channel."""
    order = [
        lane
        for quarter in range(4)
        for half in (0, LANES)
        for lane in range(half + 4 * quarter, half + 4 * quarter + 4)
    ]
    low, high = sums
    return [shuffle(builder, low, high, order[:LANES]), shuffle(builder, low, high, order[LANES:])]


@intrinsic
def prefetch(_context: Any, array: Any, at: Any, count: Any) -> Any:
    """Ask for `count` elements from `at` on: the next block lies anywhere, and the processor cannot guess where."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (data,) = data_of(context, builder, signature, args, 0)
        line = number(64 * 8 // array.dtype.bitwidth)
        byte = I8.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        with cgutils.for_range(builder, builder.sdiv(args[2], line)) as loop:
            pointer = builder.gep(data, [builder.add(args[1], builder.mul(loop.index, line))])
            flags = (ir.Constant(I32, flag) for flag in (0, 3, 1))  # to read, into the first cache, data
            builder.call(function, [builder.bitcast(pointer, byte), *flags])
        return context.get_dummy_value()

    return types.void(array, at, count), generate
