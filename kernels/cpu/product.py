"""The product of quantized rows with a packed int8 weight: which tiles, in which order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.cpu.jit import fast
from kernels.cpu.vnni import LANES, PANELS, ROWS, tile

Array = npt.NDArray[Any]


def pack(codes: Array) -> tuple[Array, Array]:
    """Pack a weight [num_columns, size] int8, size a multiple of 4; columns of zeros fill the last panel.

    Returns:
        packed, flat, and offsets [panels * 16] int32; see `kernels.cpu.vnni`.
    """
    num_columns, size = codes.shape
    padded = np.zeros((-(-num_columns // LANES) * LANES, size), np.int8)
    padded[:num_columns] = codes
    panels = padded.view(np.int32).reshape(-1, LANES, size // 4).transpose(0, 2, 1)
    return np.ascontiguousarray(panels).reshape(-1).view(np.int8), padded.sum(axis=1, dtype=np.int32) * np.int32(-128)


@fast
def multiply(first, last, codes, packed, offsets, out):
    """Fill panels [first, last) of out [num_rows, 16 * panels] int32."""
    num_rows = codes.shape[0]
    num_passes = (num_rows + ROWS - 1) // ROWS
    for panel in range(first, last, PANELS):
        # all rows to the same weights: these are read from memory once
        for each in range(num_passes):
            row, end = num_rows * each // num_passes, num_rows * (each + 1) // num_passes
            if panel + PANELS <= last:
                _rows(codes, row, end - row, packed, panel, offsets, out)
            else:
                for single in range(panel, last):
                    _rows_one_panel(codes, row, end - row, packed, single, offsets, out)


@fast
def _rows(codes, row, num_rows, packed, panel, offsets, out):
    size, width = codes.shape[1], out.shape[1]
    c, p, f = row * size, panel * LANES * size, panel * LANES
    o, step = row * width + f, LANES * size
    if num_rows == 6:
        tile(codes, c, size, packed, p, step, offsets, f, out, o, width, 6, 4)
    elif num_rows == 5:
        tile(codes, c, size, packed, p, step, offsets, f, out, o, width, 5, 4)
    elif num_rows == 4:
        tile(codes, c, size, packed, p, step, offsets, f, out, o, width, 4, 4)
    elif num_rows == 3:
        tile(codes, c, size, packed, p, step, offsets, f, out, o, width, 3, 4)
    elif num_rows == 2:
        tile(codes, c, size, packed, p, step, offsets, f, out, o, width, 2, 4)
    else:
        tile(codes, c, size, packed, p, step, offsets, f, out, o, width, 1, 4)


@fast
def _rows_one_panel(codes, row, num_rows, packed, panel, offsets, out):
    size, width = codes.shape[1], out.shape[1]
    p, f = panel * LANES * size, panel * LANES
    for each in range(row, row + num_rows):
        tile(codes, each * size, size, packed, p, size, offsets, f, out, each * width + f, width, 1, 1)
