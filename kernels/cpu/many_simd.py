"""Vector code for many query rows at once: a lane is a row, so nothing is ever summed or compared across lanes."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.cpu import softmax
from kernels.cpu.jit import intrinsic
from kernels.cpu.vectors import (
    FLOATS,
    I8,
    I16,
    I32,
    INTS,
    LANES,
    as_floats,
    data_of,
    dot,
    floats,
    fma,
    is_half,
    larger,
    literal,
    load,
    number,
    pieces,
    save,
    splat,
    widen,
)

MOST_CHANNELS = 256
STRIDE = MOST_CHANNELS + LANES
"""Elements from one token of a tile to the next: a constant is part of an instruction, and this one meets all cache sets."""


@intrinsic
def multiply_keys(
    _context: Any, queries: Any, q_at: Any, keys: Any, k_at: Any, size: Any, scales: Any, s_at: Any, out: Any, o_at: Any
) -> Any:
    """Add to 16 tokens' scores, [tokens, lanes], the products of 16 rows with their keys, scaled.

    out[o_at + 16 t + lane] += scales[s_at + t] * sum over c < size of queries[q_at + 16 c + lane] * keys[k_at + STRIDE t + c]
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        q, k, s, o = data_of(context, builder, signature, args, 0, 2, 5, 7)
        sums = _products(builder, q, args[1], k, args[3], args[4], across=STRIDE, along=1)
        for index, total in enumerate(sums):
            scale = splat(builder, builder.load(builder.gep(s, [builder.add(args[6], number(index))])))
            _add(builder, total, scale, o, builder.add(args[8], number(index * LANES)))
        return context.get_dummy_value()

    return types.void(queries, q_at, keys, k_at, size, scales, s_at, out, o_at), generate


@intrinsic
def multiply_values(
    _context: Any,
    weights: Any,
    w_at: Any,
    values: Any,
    v_at: Any,
    size: Any,
    factors: Any,
    f_at: Any,
    out: Any,
    o_at: Any,
) -> Any:
    """Add to 16 channels, [channels, lanes], a tile's values weighted by 16 rows.

    out[o_at + 16 c + lane] += factors[f_at + lane] * sum over t < size of weights[w_at + 16 t + lane] * values[v_at + STRIDE t + c]
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        w, v, f, o = data_of(context, builder, signature, args, 0, 2, 5, 7)
        sums = _products(builder, w, args[1], v, args[3], args[4], across=1, along=STRIDE)
        factor = load(builder, f, args[6])
        for index, total in enumerate(sums):
            _add(builder, total, factor, o, builder.add(args[8], number(index * LANES)))
        return context.get_dummy_value()

    return types.void(weights, w_at, values, v_at, size, factors, f_at, out, o_at), generate


def _products(
    builder: Any, lanes: Any, at: Any, others: Any, first: Any, count: Any, *, across: int, along: int
) -> list[Any]:
    """For j < 16: the sum over i < count of lanes[at + 16 i + lane] * others[first + across j + along i]."""
    kind = FLOATS if lanes.type.pointee != I32 else INTS
    sums = [cgutils.alloca_once_value(builder, ir.Constant(kind, None)) for _ in range(LANES)]
    with cgutils.for_range(builder, count) as loop:
        vector = load(builder, lanes, builder.add(at, builder.mul(loop.index, number(LANES))), kind)
        start = builder.add(first, builder.mul(loop.index, number(along)))
        for index, total in enumerate(sums):
            other = builder.load(builder.gep(others, [builder.add(start, number(index * across))]))
            builder.store(dot(builder, builder.load(total), vector, splat(builder, other)), total)
    return [builder.load(total) for total in sums]


def _add(builder: Any, total: Any, factor: Any, out: Any, at: Any) -> None:
    save(builder, fma(builder, as_floats(builder, total), factor, load(builder, out, at)), out, at)


@intrinsic
def soften_lanes(
    _context: Any, scores: Any, seen: Any, count: Any, q_scales: Any, state_at: Any, peak: Any, total: Any, steps: Any
) -> Any:
    """Turn a tile's scores, [tokens, lanes], into weights below the tile's peak, and take the step of `softmax`.

    Args:
        scores: fp32; tokens from count up to a multiple of 16 become 0.
        seen: int32, [lanes]: tokens of the tile that a row sees.
        count: tokens of the tile that any row sees.
        q_scales: fp32, what the scores of a row are to be multiplied with.
        state_at: the first row, in q_scales, peak and total.
        peak: fp32.
        total: fp32.
        steps: fp32, [2, lanes]: factors on what was, and on what the tile adds.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data, seen_at, q, peaks, totals, out = data_of(context, builder, signature, args, 0, 1, 3, 5, 6, 7)
        num_seen, state = load(builder, seen_at, number(0), INTS), args[4]
        scale = load(builder, q, state)
        best = cgutils.alloca_once_value(builder, softmax.LOWEST)
        masses = cgutils.alloca_once_value(builder, ir.Constant(INTS, None))

        def visible(token: Any) -> Any:
            return builder.icmp_signed("<", splat(builder, builder.trunc(token, I32)), num_seen)

        with cgutils.for_range(builder, args[2]) as loop:
            at = builder.mul(loop.index, number(LANES))
            score = builder.fmul(load(builder, data, at), scale)
            save(builder, score, data, at)
            score = builder.select(visible(loop.index), score, softmax.LOWEST)
            builder.store(larger(builder, score, builder.load(best)), best)
        highest = builder.load(best)
        active = builder.icmp_signed(">", num_seen, ir.Constant(INTS, None))
        new_peak, shrink, fresh = softmax.step(builder, load(builder, peaks, state), highest, active)
        with cgutils.for_range(builder, builder.mul(pieces(builder, args[2]), number(LANES))) as loop:
            at = builder.mul(loop.index, number(LANES))
            p = softmax.weight(builder, load(builder, data, at), highest, visible(loop.index))
            save(builder, p, data, at)
            builder.store(builder.add(builder.load(masses), softmax.mass(builder, p)), masses)
        new_total = softmax.new_total(builder, load(builder, totals, state), builder.load(masses), shrink, fresh)
        save(builder, new_peak, peaks, state)
        save(builder, new_total, totals, state)
        save(builder, shrink, out, number(0))
        save(builder, fresh, out, number(LANES))
        return context.get_dummy_value()

    return types.void(scores, seen, count, q_scales, state_at, peak, total, steps), generate


@intrinsic
def weigh_lanes(
    _context: Any,
    p: Any,
    num_pairs: Any,
    scales: Any,
    s_at: Any,
    bounds: Any,
    steps: Any,
    weights: Any,
    factors: Any,
    low: Any,
) -> Any:
    """Turn a tile's p, [tokens, lanes], into pairs of 16-bit weights, [pairs, lanes], and give the factor on their sums.

    Args:
        p: fp32.
        num_pairs: of tokens.
        scales: fp32, of the tile's values.
        s_at: the first of them.
        bounds: fp32, [lanes]: the largest scale that a row sees.
        steps: as `soften_lanes` left it.
        weights: int32.
        factors: fp32, [lanes].
        low: 0 or 1, literal: which part of the weights.
    """
    rest = bool(literal(low))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data, s, bounds_at, step, out, factor = data_of(context, builder, signature, args, 0, 2, 4, 5, 6, 7)
        bound = load(builder, bounds_at, number(0))
        unit = softmax.unit_of(builder, bound)
        with cgutils.for_range(builder, args[1]) as pair:
            token = builder.mul(pair.index, number(2))
            low, high = (
                softmax.integer_weight(
                    builder,
                    load(builder, data, builder.mul(each, number(LANES))),
                    splat(builder, builder.load(builder.gep(s, [builder.add(args[3], each)]))),
                    unit,
                    low=rest,
                )
                for each in (token, builder.add(token, number(1)))
            )
            save(builder, _pair(builder, low, high), out, builder.mul(pair.index, number(LANES)))
        fresh = load(builder, step, number(LANES))
        save(builder, softmax.value_factor(builder, fresh, bound, low=rest), factor, number(0))
        return context.get_dummy_value()

    return types.void(p, num_pairs, scales, s_at, bounds, steps, weights, factors, low), generate


@intrinsic
def shrink_lanes(_context: Any, out: Any, at: Any, count: Any, steps: Any) -> Any:
    """Multiply `count` vectors from out[at] on by the first of `steps`, unless that is 1 in all lanes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data, step = data_of(context, builder, signature, args, 0, 3)
        shrink = load(builder, step, number(0))
        changed = builder.bitcast(builder.fcmp_unordered("!=", shrink, floats(1.0)), ir.IntType(LANES))
        with (
            builder.if_then(builder.icmp_unsigned("!=", changed, ir.Constant(changed.type, 0))),
            cgutils.for_range(builder, args[2]) as loop,
        ):
            place = builder.add(args[1], builder.mul(loop.index, number(LANES)))
            save(builder, builder.fmul(load(builder, data, place), shrink), data, place)
        return context.get_dummy_value()

    return types.void(out, at, count, steps), generate


@intrinsic
def unpack_key(_context: Any, source: Any, s_at: Any, size: Any, out: Any, o_at: Any) -> Any:
    """Write a key of `size` channels, a multiple of 16, as fp32; or codes as pairs of 16 bits into int32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data, out_data = data_of(context, builder, signature, args, 0, 3)
        with cgutils.for_range(builder, pieces(builder, args[2])) as loop:
            at = builder.mul(loop.index, number(LANES))
            from_at = builder.add(args[1], at)
            if out_data.type.pointee == I32:
                codes = load(builder, data, from_at, ir.VectorType(I8, LANES))
                key = builder.sext(codes, ir.VectorType(I16, LANES))
                at = builder.sdiv(at, number(2))
            else:
                key = widen(builder, data, from_at, half=is_half(source))
            save(builder, key, out_data, builder.add(args[4], at))
        return context.get_dummy_value()

    return types.void(source, s_at, size, out, o_at), generate


@intrinsic
def unpack_values(_context: Any, source: Any, s_at: Any, next_at: Any, size: Any, out: Any, o_at: Any) -> Any:
    """Write the codes of two tokens as pairs of 16 bits into int32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data, out_data = data_of(context, builder, signature, args, 0, 4)
        with cgutils.for_range(builder, pieces(builder, args[3])) as loop:
            at = builder.mul(loop.index, number(LANES))
            low, high = (
                builder.sext(load(builder, data, builder.add(start, at), ir.VectorType(I8, LANES)), INTS)
                for start in (args[1], args[2])
            )
            save(builder, _pair(builder, low, high), out_data, builder.add(args[5], at))
        return context.get_dummy_value()

    return types.void(source, s_at, next_at, size, out, o_at), generate


def _pair(builder: Any, low: Any, high: Any) -> Any:
    """Two numbers of 16 bits in one of 32."""
    return builder.or_(
        builder.and_(low, ir.Constant(INTS, [0xFFFF] * LANES)), builder.shl(high, ir.Constant(INTS, [16] * LANES))
    )
