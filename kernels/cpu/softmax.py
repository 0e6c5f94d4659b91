"""Online softmax in steps of a tile, with sums that have the same bits in any order.

A tile's weights are taken below the tile's own peak, p = 2^(s - t), and summed as integers: p · 2^24, of which 64 fit in
31 bits. Against int8 values they are 15-bit integers themselves, w = p · value_scale · (32767 / the largest value scale
that the row sees in the tile), once more for the rest in fp32, and their products with codes are summed exactly as well. So a row's result does not
depend on whether lanes are rows or tokens, nor on its neighbours.

Source: online softmax, Milakov and Gimelshein 2018.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from kernels.cpu.vectors import FLOATS, INTS, exp2, floats, fma, larger

TILE = 64
"""Tokens between two steps."""
WEIGHT_MAX = 32767.0
LOW = 2.0**15
"""Where the model computes in fp32, queries and weights have a second integer for what the first, of 15 bits, leaves."""
_MASS = 2.0**24


def step(builder: Any, peak: Any, best: Any, active: Any) -> tuple[Any, Any, Any]:
    """(new peak, factor on what lay below the old one, factor on the tile's), of rows that see a part of the tile."""
    new_peak = larger(builder, best, peak)
    shrink = builder.select(active, exp2(builder, builder.fsub(peak, new_peak)), floats(1.0))
    fresh = builder.select(active, exp2(builder, builder.fsub(best, new_peak)), floats(0.0))
    return new_peak, shrink, fresh


def weight(builder: Any, score: Any, best: Any, visible: Any) -> Any:
    """The p of a score; 0 where the token is not visible."""
    return builder.select(visible, exp2(builder, builder.fsub(score, best)), floats(0.0))


def mass(builder: Any, p: Any) -> Any:
    """P as an integer, to be summed."""
    return builder.fptosi(fma(builder, p, floats(_MASS), floats(0.5)), INTS)


def new_total(builder: Any, total: Any, masses: Any, shrink: Any, fresh: Any) -> Any:
    """The new l, with the tile's masses."""
    added = builder.fmul(fresh, builder.fmul(builder.sitofp(masses, FLOATS), floats(1.0 / _MASS)))
    return fma(builder, total, shrink, added)


def integer_weight(builder: Any, p: Any, value_scale: Any, unit: Any, *, low: bool) -> Any:
    """w, with unit = 32767 / bound; or 2^15 times what its rounding lost."""
    scaled = builder.fmul(value_scale, unit)
    whole = builder.fptosi(fma(builder, p, scaled, floats(0.5)), INTS)
    if not low:
        return whole
    lost = fma(builder, p, scaled, builder.fneg(builder.sitofp(whole, FLOATS)))
    return builder.fptosi(builder.fmul(lost, floats(LOW)), INTS)


def unit_of(builder: Any, bound: Any) -> Any:
    """32767 / the largest value scale that is seen."""
    return builder.fdiv(floats(WEIGHT_MAX), bound)


def value_factor(builder: Any, fresh: Any, bound: Any, *, low: bool) -> Any:
    """What turns a tile's sum of w · code into an addend of o."""
    factor = builder.fmul(fresh, builder.fmul(bound, floats(1.0 / WEIGHT_MAX)))
    return builder.fmul(factor, floats(1.0 / LOW)) if low else factor


LOWEST = ir.Constant(FLOATS, [-np.inf] * 16)
