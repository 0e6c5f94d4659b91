"""Products of int8 rows and packed int8 weights as explicit vector code, and a barrier between threads, for numba.

The instruction `vpdpbusd` adds four products of an unsigned and a signed byte to each 32-bit lane. Activations are
therefore kept with 128 added, and what that adds to a sum is taken off before: 128 · Σ codes of a column (`offsets`).

Weights are packed so that a vector holds 16 output channels times 4 neighbouring inputs: [panels, size / 4, 16, 4].
torch's own int8 product takes 50 us and more to start, as long as the product itself at the sizes of a decode step.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils, errors

from kernels.cpu.jit import intrinsic

LANES = 16
ROWS = 6
PANELS = 4
"""6 rows by 4 panels are 24 accumulators; with 4 vectors of weights and one of a row they fill the 32 registers."""
_SPINS = 4000  # then the core is offered to others at each turn: the thread waited for may need it
_BYTE, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_I32, LANES)


@intrinsic
def tile(
    _context: Any,
    codes: Any,
    c_at: Any,
    c_stride: Any,
    packed: Any,
    p_at: Any,
    p_stride: Any,
    offsets: Any,
    f_at: Any,
    out: Any,
    o_at: Any,
    o_stride: Any,
    num_rows: Any,
    num_panels: Any,
) -> Any:
    """Write the products of `num_rows` rows and `num_panels` panels (literals) to out.

    out[o_at + row * o_stride + column] = offsets[f_at + column] + sum of codes[c_at + row * c_stride + k] * W[column, k]

    Args:
        codes: uint8, with 128 added.
        c_at: the first one; likewise p_at, f_at, o_at.
        c_stride: elements from one row to the next: the size of a row, a multiple of 4.
        packed: int8.
        p_at: see c_at.
        p_stride: elements from one panel to the next.
        offsets: int32, one a column.
        f_at: see c_at.
        out: int32.
        o_at: see c_at.
        o_stride: elements from one row to the next, of out.
        num_rows: at most ROWS.
        num_panels: at most PANELS.
    """
    rows, panels = _literal(num_rows), _literal(num_panels)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        c_data, p_data, f_data, o_data = (_data(context, builder, signature, args, index) for index in (0, 3, 6, 8))
        _, c_start, c_step, _, p_start, p_step, _, f_start, _, o_start, o_step, _, _ = args
        starts = [_load(builder, f_data, _at(builder, f_start, LANES, panel)) for panel in range(panels)]
        sums = [[cgutils.alloca_once_value(builder, starts[panel]) for panel in range(panels)] for _ in range(rows)]
        for row in range(rows):
            for panel in range(panels):  # the tile may be inside a loop, and an alloca is set but once
                builder.store(starts[panel], sums[row][panel])
        with cgutils.for_range(builder, builder.sdiv(c_step, ir.Constant(_I64, 4))) as four:
            at = builder.mul(four.index, ir.Constant(_I64, 4 * LANES))
            weights = [
                _load(builder, p_data, builder.add(at, _sum_of(builder, p_start, p_step, panel)))
                for panel in range(panels)
            ]
            for row in range(rows):
                place = builder.add(
                    builder.mul(four.index, ir.Constant(_I64, 4)), _sum_of(builder, c_start, c_step, row)
                )
                pointer = builder.bitcast(builder.gep(c_data, [place]), _I32.as_pointer())
                number = _splat(builder, builder.load(pointer, align=1))
                for panel in range(panels):
                    total = sums[row][panel]
                    builder.store(_add_products(builder, builder.load(total), number, weights[panel]), total)
        for row in range(rows):
            for panel in range(panels):
                place = _at(builder, _sum_of(builder, o_start, o_step, row), LANES, panel)
                pointer = builder.bitcast(builder.gep(o_data, [place]), _VECTOR.as_pointer())
                builder.store(builder.load(sums[row][panel]), pointer, align=4)
        return context.get_dummy_value()

    arguments = (
        *(codes, c_at, c_stride, packed, p_at, p_stride, offsets, f_at, out, o_at, o_stride),
        *(num_rows, num_panels),
    )
    return types.void(*arguments), generate


@intrinsic
def meet(_context: Any, counter: Any, number: Any) -> Any:
    """Add 1 to counter[0], an int64, and wait until it is at least `number`: all threads have come here."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = _data(context, builder, signature, args, 0)
        builder.atomic_rmw("add", data, ir.Constant(_I64, 1), "seq_cst")
        spins = cgutils.alloca_once_value(builder, ir.Constant(_I64, 0))
        builder.store(ir.Constant(_I64, 0), spins)
        check, wait, done = (builder.append_basic_block(name) for name in ("check", "wait", "done"))
        builder.branch(check)
        builder.position_at_end(check)
        arrived = builder.icmp_signed(">=", builder.load_atomic(data, "acquire", 8), args[1])
        builder.cbranch(arrived, done, wait)
        builder.position_at_end(wait)
        count = builder.add(builder.load(spins), ir.Constant(_I64, 1))
        builder.store(count, spins)
        nothing = ir.FunctionType(ir.VoidType(), [])
        builder.call(cgutils.get_or_insert_function(builder.module, nothing, "llvm.x86.sse2.pause"), [])
        with builder.if_then(builder.icmp_signed(">", count, ir.Constant(_I64, _SPINS))):
            builder.call(cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I32, []), "sched_yield"), [])
        builder.branch(check)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return types.void(counter, number), generate


def _add_products(builder: Any, total: Any, unsigned: Any, signed: Any) -> Any:
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.vpdpbusd.512")
    return builder.call(function, [total, unsigned, signed])


def _literal(number: Any) -> int:
    if not isinstance(number, types.IntegerLiteral):
        raise errors.RequireLiteralValue("num_rows, num_panels")  # numba then tries again with the literals
    return int(number.literal_value)


def _data(context: Any, builder: Any, signature: Any, args: Any, index: int) -> Any:
    return context.make_array(signature.args[index])(context, builder, args[index]).data


def _load(builder: Any, data: Any, offset: Any) -> Any:
    return builder.load(builder.bitcast(builder.gep(data, [offset]), _VECTOR.as_pointer()), align=1)


def _at(builder: Any, start: Any, step: int, times: int) -> Any:
    return builder.add(start, ir.Constant(_I64, step * times))


def _sum_of(builder: Any, start: Any, step: Any, times: int) -> Any:
    return builder.add(start, builder.mul(step, ir.Constant(_I64, times)))


def _splat(builder: Any, scalar: Any) -> Any:
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_VECTOR, None))
