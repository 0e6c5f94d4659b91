"""Numba's decorators with this package's flags, once.

All compiled functions let go of the interpreter lock and are kept on disk. `exact` may neither reorder sums nor fuse
products: bits are part of what it promises. `fast` may, but not assume that NaN and infinities are away.
"""

from __future__ import annotations

from typing import Any

from numba import njit
from numba.extending import intrinsic as _intrinsic
from numba.extending import overload as _overload

fast: Any = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
exact: Any = njit(nogil=True, cache=True, error_model="numpy", fastmath=False)
intrinsic: Any = _intrinsic


def by_type(choose: Any) -> Any:
    """Make a function of one that returns its body, an `exact` one, by the types of the arguments."""

    def chosen(*_: Any) -> Any:
        raise NotImplementedError  # only compiled code calls it

    _overload(chosen, jit_options={"fastmath": False, "error_model": "numpy", "nogil": True})(choose)
    return chosen
