"""Numba's decorators with this package's flags, once.

All compiled functions let go of the interpreter lock and are kept on disk. `fast` may reorder sums and fuse products,
but not assume that NaN and infinities are away; `exact` may do neither. It says so aloud, for numba hands the flags of
a caller on to what that calls.
"""

from __future__ import annotations

from typing import Any

from numba import njit
from numba.extending import intrinsic as _intrinsic

fast: Any = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
exact: Any = njit(nogil=True, cache=True, error_model="numpy", fastmath=False)
intrinsic: Any = _intrinsic
