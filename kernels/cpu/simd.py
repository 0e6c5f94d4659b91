"""The two inner products of attention as explicit vector code, for numba.

Left to itself numba's vectorizer keeps to half-wide vectors and reloads what it cannot prove unchanged: 3 times slower.
Here accumulators stay in registers for up to 4 rows of queries, and each cached number is widened to fp32 once for all
of them. The vectors are plain LLVM vectors of 16, which every processor can run, in as many pieces as it needs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, errors

from kernels.cpu.jit import intrinsic

LANES = 16
ROWS = 4
"""Most query rows of one pass: 4 rows and 4 tokens are 16 accumulators of the 32 registers, and one tidy reduction."""

_SERIES = tuple(math.log(2.0) ** k / math.factorial(k) for k in range(7))  # of 2^r
_F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_F32, LANES)
_TOKENS = LANES // ROWS  # keys of one pass
_FOUR = ir.VectorType(_F32, _TOKENS)


@intrinsic
def add_scores(
    _context: Any,
    query: Any,
    q_at: Any,
    keys: Any,
    k_at: Any,
    stride: Any,
    size: Any,
    scales: Any,
    s_at: Any,
    out: Any,
    o_at: Any,
    o_stride: Any,
    num_rows: Any,
) -> Any:
    """Add to scores the products of `num_rows` (literal, at most 4) query rows with 4 cached keys.

    out[o_at + row * o_stride + token] +=
        scales[s_at + token] * sum over d < size of query[q_at + row * stride + d] * keys[k_at + token * stride + d]

    Args:
        query: fp32.
        q_at: its first element, in memory order; likewise k_at, s_at and o_at.
        keys: int8 codes; or uint16, int16 or float32 for bf16, fp16 and fp32.
        k_at: 4 keys from there must be inside the cache, whatever they hold.
        stride: elements from one row to the next, of query and keys.
        size: channels, a multiple of 16.
        scales: fp32, one a key.
        s_at: see q_at.
        out: fp32.
        o_at: see q_at.
        o_stride: elements from one row to the next, of out.
        num_rows: query rows.
    """
    rows = _literal(num_rows)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        q_data, k_data, s_data, o_data = (_data(context, builder, signature, args, index) for index in (0, 2, 6, 8))
        _, q_start, _, k_start, step, channels, _, s_start, _, o_start, o_step, _ = args
        sums = [cgutils.alloca_once_value(builder, ir.Constant(_VECTOR, None)) for _ in range(LANES)]
        with cgutils.for_range(builder, builder.sdiv(channels, ir.Constant(_I64, LANES))) as chunk:
            at = builder.mul(chunk.index, ir.Constant(_I64, LANES))
            queries = [
                _widen(builder, q_data, _sum(builder, q_start, at, _times(builder, step, r))) for r in range(rows)
            ]
            for token in range(_TOKENS):
                offset = _sum(builder, k_start, at, _times(builder, step, token))
                key = _widen(builder, k_data, offset, half=_is_half(signature.args[2]))
                for row in range(rows):
                    total = sums[row * _TOKENS + token]
                    builder.store(_fma(builder, queries[row], key, builder.load(total)), total)
        reduced = _reduce(builder, [builder.load(total) for total in sums])
        scale = builder.load(_pointer(builder, s_data, s_start, _FOUR), align=4)
        for row in range(rows):
            four = _shuffle(builder, reduced, reduced, [row * _TOKENS + token for token in range(_TOKENS)])
            place = _pointer(builder, o_data, builder.add(o_start, _times(builder, o_step, row)), _FOUR)
            builder.store(_fma(builder, four, scale, builder.load(place, align=4)), place, align=4)
        return context.get_dummy_value()

    arguments = (query, q_at, keys, k_at, stride, size, scales, s_at, out, o_at, o_stride, num_rows)
    return types.void(*arguments), generate


@intrinsic
def add_values(
    _context: Any,
    weights: Any,
    w_at: Any,
    w_stride: Any,
    values: Any,
    v_at: Any,
    stride: Any,
    size: Any,
    count: Any,
    out: Any,
    o_at: Any,
    num_rows: Any,
) -> Any:
    """Add weighted cached values to `num_rows` (literal, at most 4) output rows.

    out[o_at + row * stride + d] += sum over t < count of weights[w_at + row * w_stride + t] * values[v_at + t * stride + d]

    for d < size, a multiple of 16; types and places as in `add_scores`. Values from count on are not read.
    """
    rows = _literal(num_rows)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        w_data, v_data, o_data = (_data(context, builder, signature, args, index) for index in (0, 3, 8))
        _, w_start, w_step, _, v_start, step, channels, tokens, _, o_start, _ = args
        half = _is_half(signature.args[3])
        sums = [cgutils.alloca_once(builder, _VECTOR) for _ in range(2 * rows)]

        def accumulate(token: Any, at: Any, into: list[Any]) -> None:
            value = _widen(builder, v_data, _sum(builder, v_start, at, builder.mul(token, step)), half=half)
            for row in range(rows):
                offset = _sum(builder, w_start, token, _times(builder, w_step, row))
                weight = _splat(builder, builder.load(builder.gep(w_data, [offset])))
                builder.store(_fma(builder, weight, value, builder.load(into[row])), into[row])

        with cgutils.for_range(builder, builder.sdiv(channels, ir.Constant(_I64, LANES))) as chunk:
            at = builder.mul(chunk.index, ir.Constant(_I64, LANES))
            offsets = [_sum(builder, o_start, at, _times(builder, step, row)) for row in range(rows)]
            places = [_pointer(builder, o_data, offset, _VECTOR) for offset in offsets]
            for row, place in enumerate(places):
                builder.store(builder.load(place, align=4), sums[row])
                builder.store(ir.Constant(_VECTOR, None), sums[rows + row])
            # two sums a row, for even and odd tokens: one would wait for its own last product
            with cgutils.for_range(builder, builder.sdiv(tokens, ir.Constant(_I64, 2))) as pair:
                even = builder.mul(pair.index, ir.Constant(_I64, 2))
                accumulate(even, at, sums[:rows])
                accumulate(builder.add(even, ir.Constant(_I64, 1)), at, sums[rows:])
            with builder.if_then(builder.trunc(tokens, ir.IntType(1))):
                accumulate(builder.sub(tokens, ir.Constant(_I64, 1)), at, sums[:rows])
            for row, place in enumerate(places):
                total = builder.fadd(builder.load(sums[row]), builder.load(sums[rows + row]))
                builder.store(total, place, align=4)
        return context.get_dummy_value()

    return types.void(weights, w_at, w_stride, values, v_at, stride, size, count, out, o_at, num_rows), generate


@intrinsic
def soften(_context: Any, scores: Any, at: Any, seen: Any, count: Any, peak: Any) -> Any:
    """Turn the first `seen` scores into 2^(score - new peak) and the rest up to `count` into 0.

    2^x = 2^n · 2^r with n the nearest integer; 2^r by its series, of which |r| <= 1/2 leaves 1.2e-7 out. Below 2^-126 it
    stays there.

    Args:
        scores: fp32; 16 at a time are read and written.
        at: the first one.
        seen: at least 1.
        count: at least seen.
        peak: the largest score before these.

    Returns:
        (new peak, sum of the weights).
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = _data(context, builder, signature, args, 0)
        _, start, num_seen, num_all, old_peak = args
        lowest = ir.Constant(_VECTOR, [-np.inf] * LANES)
        highest = cgutils.alloca_once_value(builder, lowest)
        total = cgutils.alloca_once_value(builder, ir.Constant(_VECTOR, None))
        chunks = builder.sdiv(builder.add(num_all, ir.Constant(_I64, LANES - 1)), ir.Constant(_I64, LANES))

        def place(chunk: Any) -> tuple[Any, Any]:
            offset = builder.mul(chunk.index, ir.Constant(_I64, LANES))
            lanes = builder.add(_splat(builder, offset), ir.Constant(ir.VectorType(_I64, LANES), list(range(LANES))))
            visible = builder.icmp_signed("<", lanes, _splat(builder, num_seen))
            return _pointer(builder, data, builder.add(start, offset), _VECTOR), visible

        with cgutils.for_range(builder, chunks) as chunk:
            pointer, visible = place(chunk)
            score = builder.select(visible, builder.load(pointer, align=4), lowest)
            best = builder.load(highest)
            builder.store(builder.select(builder.fcmp_ordered(">", score, best), score, best), highest)
        new_peak = _reduce_vector(builder, "fmax", builder.load(highest))
        new_peak = builder.select(builder.fcmp_ordered(">", new_peak, old_peak), new_peak, old_peak)
        with cgutils.for_range(builder, chunks) as chunk:
            pointer, visible = place(chunk)
            x = builder.fsub(builder.load(pointer, align=4), _splat(builder, new_peak))
            weight = builder.select(visible, _exp2(builder, x), ir.Constant(_VECTOR, None))
            builder.store(weight, pointer, align=4)
            builder.store(builder.fadd(builder.load(total), weight), total)
        weight_sum = _reduce_vector(builder, "fadd", builder.load(total))
        return context.make_tuple(builder, signature.return_type, (new_peak, weight_sum))

    return types.UniTuple(types.float32, 2)(scores, at, seen, count, peak), generate


@intrinsic
def dequantize(_context: Any, source: Any, s_at: Any, size: Any, scale: Any, out: Any, o_at: Any) -> Any:
    """Write out[o_at + d] = scale * source[s_at + d] for d < size, a multiple of 16; types as in `add_scores`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        s_data, o_data = (_data(context, builder, signature, args, index) for index in (0, 4))
        _, s_start, channels, factor, _, o_start = args
        with cgutils.for_range(builder, builder.sdiv(channels, ir.Constant(_I64, LANES))) as chunk:
            at = builder.mul(chunk.index, ir.Constant(_I64, LANES))
            number = _widen(builder, s_data, builder.add(s_start, at), half=_is_half(signature.args[0]))
            place = _pointer(builder, o_data, builder.add(o_start, at), _VECTOR)
            builder.store(builder.fmul(number, _splat(builder, factor)), place, align=4)
        return context.get_dummy_value()

    return types.void(source, s_at, size, scale, out, o_at), generate


@intrinsic
def prefetch(_context: Any, array: Any, at: Any, count: Any) -> Any:
    """Ask for `count` elements from `at` on: the next block lies anywhere, and the processor cannot guess where."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = _data(context, builder, signature, args, 0)
        line = ir.Constant(_I64, 64 * 8 // array.dtype.bitwidth)
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        with cgutils.for_range(builder, builder.sdiv(args[2], line)) as loop:
            pointer = builder.gep(data, [builder.add(args[1], builder.mul(loop.index, line))])
            flags = (ir.Constant(_I32, flag) for flag in (0, 3, 1))  # to read, into the first cache, data
            builder.call(function, [builder.bitcast(pointer, byte), *flags])
        return context.get_dummy_value()

    return types.void(array, at, count), generate


def _literal(number: Any) -> int:
    if not isinstance(number, types.IntegerLiteral):
        raise errors.RequireLiteralValue("num_rows")  # numba then tries again with the literal
    return int(number.literal_value)


def _data(context: Any, builder: Any, signature: Any, args: Any, index: int) -> Any:
    return context.make_array(signature.args[index])(context, builder, args[index]).data


def _is_half(array: Any) -> bool:
    return bool(array.dtype == types.int16)


def _sum(builder: Any, *terms: Any) -> Any:
    total = terms[0]
    for term in terms[1:]:
        total = builder.add(total, term)
    return total


def _times(builder: Any, step: Any, factor: int) -> Any:
    return builder.mul(step, ir.Constant(_I64, factor))


def _pointer(builder: Any, data: Any, offset: Any, vector: Any) -> Any:
    return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())


def _splat(builder: Any, scalar: Any) -> Any:
    undefined = ir.Constant(ir.VectorType(scalar.type, LANES), ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_I32, LANES), None))


def _widen(builder: Any, data: Any, offset: Any, *, half: bool = False) -> Any:
    """Load 16 neighbours as fp32."""
    element = data.type.pointee

    def load(kind: Any) -> Any:
        return builder.load(_pointer(builder, data, offset, ir.VectorType(kind, LANES)), align=1)

    if element == _F32:
        return load(_F32)
    if element == ir.IntType(8):
        return builder.sitofp(builder.sext(load(element), ir.VectorType(_I32, LANES)), _VECTOR)
    if half:
        return builder.fpext(load(ir.HalfType()), _VECTOR)
    bits = builder.zext(load(element), ir.VectorType(_I32, LANES))
    return builder.bitcast(builder.shl(bits, ir.Constant(bits.type, [16] * LANES)), _VECTOR)


def _fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    name = f"llvm.fma.v{x.type.count}f32"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(x.type, [x.type] * 3), name)
    return builder.call(function, [x, y, z])


def _exp2(builder: Any, x: Any) -> Any:
    """2^x for x <= 0; NaN for NaN."""

    def constant(value: float) -> Any:
        return ir.Constant(_VECTOR, [float(np.float32(value))] * LANES)

    x = builder.select(builder.fcmp_ordered("<", x, constant(-126.0)), constant(-126.0), x)
    rint = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_VECTOR, [_VECTOR]), f"llvm.rint.v{LANES}f32")
    nearest = builder.call(rint, [x])
    r = builder.fsub(x, nearest)
    series = constant(_SERIES[-1])
    for coefficient in _SERIES[-2::-1]:
        series = _fma(builder, series, r, constant(coefficient))
    integers = ir.VectorType(_I32, LANES)
    exponent = builder.shl(builder.fptosi(nearest, integers), ir.Constant(integers, [23] * LANES))
    return builder.bitcast(builder.add(builder.bitcast(series, integers), exponent), _VECTOR)


def _reduce_vector(builder: Any, operation: str, vector: Any) -> Any:
    start = [ir.Constant(_F32, 0.0)] if operation == "fadd" else []
    kind = ir.FunctionType(_F32, [*(each.type for each in start), _VECTOR])
    name = f"llvm.vector.reduce.{operation}.v{LANES}f32"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, [*start, vector], fastmath=("reassoc",))


def _reduce(builder: Any, vectors: list[Any]) -> Any:
    """Sum each of 16 vectors: element i of the result is the sum of vector i.

    Each level adds the halves of two vectors side by side, so that 15 additions and 30 shuffles do for 16 sums.
    """
    # a level deals its sums out with the stride of the level before: the order of the result has its bits reversed
    vectors = [vectors[int(f"{index:04b}"[::-1], 2)] for index in range(LANES)]
    width = LANES // 2
    while len(vectors) > 1:
        low = [lane for lane in range(2 * LANES) if lane // width % 2 == 0]
        high = [lane + width for lane in low]
        half = len(vectors) // 2
        vectors = [
            builder.fadd(_shuffle(builder, x, y, low), _shuffle(builder, x, y, high))
            for x, y in zip(vectors[:half], vectors[half:], strict=True)
        ]
        width //= 2
    return vectors[0]


def _shuffle(builder: Any, x: Any, y: Any, lanes: list[int]) -> Any:
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(_I32, len(lanes)), lanes))
