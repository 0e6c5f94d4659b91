"""int8 weights and the memory that int8 activations pass through, for `--quantization int8`; see `kernels.int8`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kernels.cpu.product import pack
from kernels.cpu.threads import run
from kernels.int8 import quantize

Array = npt.NDArray[Any]
Product = tuple[Array, Array, Array, Array]
"""A linear layer as `kernels.cpu.int8_layer` takes it: packed, offsets, scales, bias."""
Codes = tuple[Array, Array]
"""Quantized rows: codes [num_rows, size] uint8 and scales [num_rows] fp32."""


def quantize_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Product:
    """Quantize a weight [out_features, in_features], a scale an output channel; the bias stays as it is, in fp32."""
    codes, scales = quantize(weight.float())
    offset = torch.zeros_like(scales) if bias is None else bias.float()
    return *pack(codes.numpy()), scales.numpy(), offset.numpy()


def empty_codes(num_rows: int, size: int) -> Codes:
    """Return memory for quantized rows."""
    return np.empty((num_rows, size), np.uint8), np.empty(num_rows, np.float32)


def empty_sums(num_rows: int, *products: Product) -> list[Array]:
    """Return memory for what each product leaves, [num_rows, columns in full panels] int32: the same for all."""
    widths = [len(offsets) for _, offsets, _, _ in products]
    memory = np.empty(num_rows * max(widths), np.int32)
    return [memory[: num_rows * width].reshape(num_rows, width) for width in widths]


class Team:
    """The threads that go through a layer together: as many as torch has."""

    def __init__(self) -> None:
        self._counter = np.zeros(1, np.int64)

    def run(self, kernel: Callable[..., None], *arguments: Any) -> None:
        """Call a kernel of `kernels.cpu.int8_layer` in each thread."""
        num_threads = torch.get_num_threads()
        self._counter[0] = 0
        arguments = (num_threads, self._counter, *arguments)
        run([partial(kernel, thread, *arguments) for thread in range(num_threads)])
