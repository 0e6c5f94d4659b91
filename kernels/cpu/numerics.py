"""Scalar pieces that LLVM can vectorize: conversions between floats, some by their bits, and a power of two.

Numba knows neither bf16 nor, on the CPU, fp16. Arrays of bf16 come as uint16 and arrays of fp16 as int16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from kernels.cpu.jit import exact, intrinsic

_HALF_STEP = np.float32(2.0**-24)
_SHIFTER = np.float32(1.5 * 2**23)  # adding it leaves the nearest integer in the low bits
_SHIFTER_BITS = 0x4B400000
_COEFFICIENTS = tuple(
    np.float32(np.log(2.0) ** k / factorial) for k, factorial in enumerate((1, 1, 2, 6, 24, 120, 720))
)
_C0, _C1, _C2, _C3, _C4, _C5, _C6 = _COEFFICIENTS


@intrinsic
def as_int(_context: Any, _x: Any) -> Any:
    """Return the bits of a float32 as int32."""
    return types.int32(types.float32), lambda _c, builder, _s, args: builder.bitcast(args[0], ir.IntType(32))


@intrinsic
def as_float(_context: Any, _x: Any) -> Any:
    """Return the float32 that has these 32 bits."""
    return types.float32(types.int32), lambda _c, builder, _s, args: builder.bitcast(args[0], ir.FloatType())


@intrinsic
def widen(_context: Any, x: Any) -> Any:
    """Return the float32 of an element of a cache: a code (int8), float32, bf16 as uint16 or fp16 as int16."""

    def generate(_c: Any, builder: Any, _s: Any, args: Any) -> Any:
        if x == types.int8:
            return builder.sitofp(args[0], ir.FloatType())
        if x == types.float32:
            return args[0]
        if x == types.int16:
            return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())
        bits = builder.shl(builder.zext(args[0], ir.IntType(32)), ir.Constant(ir.IntType(32), 16))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(x), generate


@intrinsic
def narrow(_context: Any, _x: Any, array: Any) -> Any:
    """Return the element of a float array that is nearest to a float32, ties to even."""

    def generate(_c: Any, builder: Any, _s: Any, args: Any) -> Any:
        if array.dtype == types.float32:
            return args[0]
        if array.dtype == types.int8:
            return builder.fptosi(args[0], ir.IntType(8))
        if array.dtype == types.int16:
            return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))
        number = ir.IntType(32)
        bits = builder.bitcast(args[0], number)
        high = builder.lshr(bits, ir.Constant(number, 16))
        odd = builder.and_(high, ir.Constant(number, 1))
        rounded = builder.lshr(
            builder.add(bits, builder.add(odd, ir.Constant(number, 0x7FFF))), ir.Constant(number, 16)
        )
        quiet = builder.or_(high, ir.Constant(number, 0x40))
        is_nan = builder.fcmp_unordered("uno", args[0], args[0])
        return builder.trunc(builder.select(is_nan, quiet, rounded), ir.IntType(16))

    return array.dtype(types.float32, array), generate


@exact
def half_to_float(bits):
    """Return the fp32 value of a positive, finite fp16 given as uint16; subnormals too, and at the same speed."""
    normal = as_float((np.int32(bits) << 13) + 0x38000000)
    return normal if bits >= 0x400 else np.float32(np.int32(bits)) * _HALF_STEP


@exact
def float_to_half(x):
    """Return the bits of the fp16 nearest to a positive x below 65520, ties to even, subnormals too."""
    bits = as_int(x)
    if bits < 0x38800000:  # below 2^-14: adding 0.5 rounds to multiples of 2^-24
        return np.uint16(as_int(x + np.float32(0.5)) - 0x3F000000)
    return np.uint16((bits + 0xFFF + ((bits >> 13) & 1) - 0x38000000) >> 13)


@exact
def exp2(x):
    """Return 2^x for x <= 0, within 2e-7 of it; 2^-126 below that; NaN for NaN.

    2^x = 2^n · 2^r with n the nearest integer; 2^r by its series, of which |r| <= 1/2 leaves 1.2e-7 out.
    """
    x = np.float32(-126.0) if x < np.float32(-126.0) else x
    shifted = x + _SHIFTER
    r = x - (shifted - _SHIFTER)
    series = ((((((_C6 * r + _C5) * r + _C4) * r + _C3) * r + _C2) * r) + _C1) * r + _C0
    return as_float(as_int(series) + ((as_int(shifted) - np.int32(_SHIFTER_BITS)) << np.int32(23)))
