"""One look at a number that another thread changes."""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.cpu.jit import intrinsic

_PAUSES = platform.machine() in ("x86_64", "AMD64")


@intrinsic
def watch(_context: Any, counter: Any) -> Any:
    """Return counter[0], an int64, as it is in memory now; on x86 after a pause that leaves the core to its neighbour."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        if _PAUSES:
            nothing = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, nothing, "llvm.x86.sse2.pause"), [])
        return builder.load_atomic(data, "acquire", 8)

    return types.int64(counter), generate
