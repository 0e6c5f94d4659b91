"""Pieces of vector code that the kernels are written in: LLVM's own vectors, of 16 numbers of 32 bits.

Every processor can run them, in as many pieces as it needs; LLVM takes its widest instructions. In particular it turns
`dot` over integers into AVX-512's or AVX-VNNI's vpdpwssd, and else into vpmaddwd and an addition.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, errors

LANES = 16
F32, I8, I16, I32, I64 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
FLOATS, INTS, SHORTS = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES), ir.VectorType(I16, 2 * LANES)

_SERIES = tuple(math.log(2.0) ** k / math.factorial(k) for k in range(7))  # of 2^r


def literal(number: Any) -> int:
    """The value of a literal argument."""
    if not isinstance(number, types.IntegerLiteral):
        raise errors.RequireLiteralValue("a literal")  # numba then tries again with the literal
    return int(number.literal_value)


def data_of(context: Any, builder: Any, signature: Any, args: Any, *indices: int) -> list[Any]:
    """Where the elements of these arguments, arrays, begin."""
    return [context.make_array(signature.args[i])(context, builder, args[i]).data for i in indices]


def is_half(array: Any) -> bool:
    """Whether an array holds fp16."""
    return bool(array.dtype == types.int16)


def number(value: int) -> Any:
    """An index."""
    return ir.Constant(I64, value)


def floats(value: float) -> Any:
    """16 times this."""
    return ir.Constant(FLOATS, [float(np.float32(value))] * LANES)


def total_of(builder: Any, *terms: Any) -> Any:
    """The sum of some indices."""
    total = terms[0]
    for term in terms[1:]:
        total = builder.add(total, term)
    return total


def pieces(builder: Any, count: Any, size: int = LANES) -> Any:
    """How many vectors `count` elements take, the last one perhaps not full."""
    return builder.sdiv(builder.add(count, number(size - 1)), number(size))


def place_of(builder: Any, data: Any, offset: Any, vector: Any) -> Any:
    """Where a vector lies."""
    return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())


def load(builder: Any, data: Any, offset: Any, vector: Any = FLOATS) -> Any:
    """A vector of neighbours."""
    return builder.load(place_of(builder, data, offset, vector), align=1)


def save(builder: Any, value: Any, data: Any, offset: Any) -> None:
    """Store a vector."""
    builder.store(value, place_of(builder, data, offset, value.type), align=1)


def splat(builder: Any, scalar: Any) -> Any:
    """16 times a scalar."""
    undefined = ir.Constant(ir.VectorType(scalar.type, LANES), ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(INTS, None))


def shuffle(builder: Any, x: Any, y: Any, lanes: list[int]) -> Any:
    """These lanes of x and y, those of y counted on from those of x."""
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))


def widen(builder: Any, data: Any, offset: Any, *, half: bool = False) -> Any:
    """16 neighbours as fp32: codes, bf16 as uint16, fp16 if `half`, or fp32."""
    element = data.type.pointee
    if element == F32:
        return load(builder, data, offset)
    if half:
        return builder.fpext(load(builder, data, offset, ir.VectorType(ir.HalfType(), LANES)), FLOATS)
    loaded = load(builder, data, offset, ir.VectorType(element, LANES))
    if element == I8:
        return builder.sitofp(builder.sext(loaded, INTS), FLOATS)
    return builder.bitcast(builder.shl(builder.zext(loaded, INTS), ir.Constant(INTS, [16] * LANES)), FLOATS)


def fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """Return x · y + z, rounded once."""
    name = f"llvm.fma.v{x.type.count}f32"
    return builder.call(
        cgutils.get_or_insert_function(builder.module, ir.FunctionType(x.type, [x.type] * 3), name), [x, y, z]
    )


def dot(builder: Any, total: Any, x: Any, y: Any) -> Any:
    """Return total + x · y, lane by lane; a lane of integers is a pair of 16 bits, and both products are added: exactly."""
    if total.type.element == F32:
        return fma(builder, x, y, total)
    wide = ir.VectorType(I32, 2 * LANES)
    product = builder.mul(*(builder.sext(builder.bitcast(each, SHORTS), wide) for each in (x, y)))
    even, odd = (shuffle(builder, product, product, list(range(first, 2 * LANES, 2))) for first in (0, 1))
    return builder.add(total, builder.add(even, odd))


def as_floats(builder: Any, sums: Any) -> Any:
    """Integers as floats; floats as they are."""
    return sums if sums.type.element == F32 else builder.sitofp(sums, ir.VectorType(F32, sums.type.count))


def exp2(builder: Any, x: Any) -> Any:
    """2^x for x <= 0; NaN for NaN.

    2^x = 2^n · 2^r with n the nearest integer; 2^r by its series, of which |r| <= 1/2 leaves 1.2e-7 out. Below 2^-126 it
    stays there.
    """
    x = builder.select(builder.fcmp_ordered("<", x, floats(-126.0)), floats(-126.0), x)
    rint = cgutils.get_or_insert_function(builder.module, ir.FunctionType(FLOATS, [FLOATS]), f"llvm.rint.v{LANES}f32")
    nearest = builder.call(rint, [x])
    r = builder.fsub(x, nearest)
    series = floats(_SERIES[-1])
    for coefficient in _SERIES[-2::-1]:
        series = fma(builder, series, r, floats(coefficient))
    exponent = builder.shl(builder.fptosi(nearest, INTS), ir.Constant(INTS, [23] * LANES))
    return builder.bitcast(builder.add(builder.bitcast(series, INTS), exponent), FLOATS)


def larger(builder: Any, x: Any, y: Any) -> Any:
    """The larger of each two; y where x is NaN."""
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


def reduce_vector(builder: Any, operation: str, vector: Any) -> Any:
    """One number of 16: `fmax`, or `fadd` in any order, or `add`."""
    element = vector.type.element
    start = [ir.Constant(F32, 0.0)] if operation == "fadd" else []
    kind = ir.FunctionType(element, [*(each.type for each in start), vector.type])
    name = f"llvm.vector.reduce.{operation}.v{LANES}{'f32' if element == F32 else 'i32'}"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, [*start, vector], fastmath=("reassoc",) if start else ())


def reduce_vectors(builder: Any, vectors: list[Any]) -> Any:
    """Sum each of 16 vectors: element i of the result is the sum of vector i.

    Each level adds the halves of two vectors side by side, so that 15 additions and 30 shuffles do for 16 sums.
    """
    add = builder.fadd if vectors[0].type.element == F32 else builder.add
    # a level deals its sums out with the stride of the level before: the order of the result has its bits reversed
    vectors = [vectors[int(f"{index:04b}"[::-1], 2)] for index in range(LANES)]
    width = LANES // 2
    while len(vectors) > 1:
        low = [lane for lane in range(2 * LANES) if lane // width % 2 == 0]
        high = [lane + width for lane in low]
        half = len(vectors) // 2
        vectors = [
            add(shuffle(builder, x, y, low), shuffle(builder, x, y, high))
            for x, y in zip(vectors[:half], vectors[half:], strict=True)
        ]
        width //= 2
    return vectors[0]
