"""int8 weights and the memory that int8 activations pass through, for `--quantization int8`; see `kernels.int8`.

Everything is there twice, as a tensor and as an array over the same memory: torch multiplies, numba does the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kernels.cpu.threads import run
from kernels.int8 import quantize

Array = npt.NDArray[Any]
_ROWS_A_THREAD = 32  # fewer are done before another thread has woken up


class Codes:
    """Quantized rows of a step."""

    def __init__(self, num_rows: int, size: int) -> None:
        self.tensor = torch.empty((num_rows, size), dtype=torch.int8)
        self.array: Array = self.tensor.numpy()
        self.scales: Array = np.empty(num_rows, np.float32)


class Sums:
    """What a product of codes leaves: int32 [num_rows, num_columns], in memory that other products use as well."""

    def __init__(self, memory: torch.Tensor, num_rows: int, num_columns: int) -> None:
        self.tensor = memory[: num_rows * num_columns].view(num_rows, num_columns)
        self.array: Array = self.tensor.numpy()


class Int8Linear:
    """x · Wᵀ + b with W in int8, a scale an output channel."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Quantize a weight [out_features, in_features]; the bias stays as it is."""
        codes, scales = quantize(weight.float())
        self._transposed = codes.t()
        self.codes: Array = codes.numpy()
        """[out_features, in_features] int8."""
        self.scales: Array = scales.numpy()
        """[out_features] fp32."""
        self.bias: Array = torch.zeros_like(scales).numpy() if bias is None else bias.float().numpy()
        """[out_features] fp32; zeros where there is none."""

    @property
    def num_columns(self) -> int:
        """Output channels."""
        return len(self.scales)

    def __call__(self, rows: Codes, sums: Sums) -> None:
        """Multiply; what the sums stand for are their products with the scales of rows and columns."""
        torch._int_mm(rows.tensor, self._transposed, out=sums.tensor)


def over_rows(kernel: Callable[..., None], num_rows: int, *arguments: Any) -> None:
    """Run a kernel of `kernels.cpu.int8` over all rows, in as many runs as are worth a thread."""
    num_runs = min(torch.get_num_threads(), num_rows // _ROWS_A_THREAD)
    if num_runs < 2:
        kernel(0, num_rows, *arguments)
        return
    edges = [num_rows * index // num_runs for index in range(num_runs + 1)]
    run([partial(kernel, first, last, *arguments) for first, last in zip(edges, edges[1:], strict=False)])
