"""Products of int8 weights and int8 activations, in one place: the rounding rule and what stands between the products.

A row of activations has one scale, and so has an output channel of a weight:

    scale = max(absmax, 1e-30) / 127;  code = round(x / scale);  y = (codes_x · codes_w) * scale_x * scale_w + bias

The sum over codes is an integer, exact in any order; and nothing here looks at another row, so a row's bits do not
depend on the batch that it comes in. A row with a value that is not finite gets a scale that is not.

One scale for a row is coarse where a few channels stand out, so what is quantized is rotated first, which leaves
products alone if the weights are rotated alike. `rotate` mixes channels in sets of `width` by a Hadamard matrix, at run
time; `spread`, for the residual stream, mixes them all, as it costs something in front of the LM head alone.

This is the readable version, and what the fused kernels of `kernels.cpu.int8` are held to.

Source: QuaRot (Ashkboos et al. 2024), SpinQuant (Liu et al. 2024).
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

CODE_MAX = 127
MIN_PEAK = 1e-30
"""Of a row of zeros: its scale is never 0."""
MAX_WIDTH = 64
"""Channels that are mixed; wider ones gain nothing that could be measured."""

Rows = tuple[torch.Tensor, torch.Tensor]
"""codes [num_rows, size] int8 and scales [num_rows] fp32."""


def rotation_width(size: int) -> int:
    """Return the channels of a set for rows of `size`: the largest power of two that divides it, at most 64."""
    return min(MAX_WIDTH, size & -size)


def rotate(x: torch.Tensor, width: int) -> torch.Tensor:
    """Multiply each set of channels by the Hadamard matrix; its own inverse.

    A set is every (size / width)-th channel, not neighbours: the butterflies then add runs of neighbours, which is what
    vector units are good at.

    Args:
        x: [..., size], a float dtype.
        width: channels of a set, a power of two that divides size.
    """
    sets = x.reshape(-1, width, x.shape[-1] // width)
    mixed: torch.Tensor = _hadamard(width).to(x.dtype) @ sets
    return mixed.view(x.shape)


def hartley(size: int) -> torch.Tensor:
    """Return the Hartley matrix, [size, size] fp32: like Hadamard's symmetric and orthonormal, but for every size.

    Source: Bracewell 1983, "Discrete Hartley transform".
    """
    index = torch.arange(size, dtype=torch.float64)
    angles = torch.outer(index, index) % size * (2 * math.pi / size)
    matrix: torch.Tensor = ((angles.cos() + angles.sin()) * size**-0.5).float()
    return matrix


def spread(x: torch.Tensor) -> torch.Tensor:
    """Mix all channels [..., size]: by Hadamard's matrix within each set, by Hartley's across; its own inverse."""
    width = rotation_width(x.shape[-1])
    num_sets = x.shape[-1] // width
    mixed: torch.Tensor = rotate(x, width).view(-1, num_sets) @ hartley(num_sets).to(x.dtype)
    return mixed.view(x.shape)


def quantize(x: torch.Tensor) -> Rows:
    """Quantize rows [num_rows, size] by the rule above."""
    scales = x.abs().amax(dim=-1).clamp_min(MIN_PEAK) / CODE_MAX
    codes = (x / scales.unsqueeze(-1)).round()
    return codes.to(torch.int8), scales


def dequantize(
    sums: torch.Tensor, row_scales: torch.Tensor, column_scales: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Return the products [num_rows, num_columns] fp32 that these int32 sums stand for."""
    return sums.float() * row_scales.unsqueeze(-1) * column_scales + bias


def linear(rows: Rows, weight: Rows, bias: torch.Tensor) -> torch.Tensor:
    """Return rows · weightᵀ + bias, [num_rows, num_columns] fp32, for a weight [num_columns, size]."""
    sums = rows[0].int() @ weight[0].int().T
    return dequantize(sums, rows[1], weight[1], bias)


def norm_quantize(hidden: torch.Tensor, eps: float) -> Rows:
    """Quantize RMSNorm(hidden) without a weight: that one is part of the next product."""
    return quantize(functional.rms_norm(hidden, hidden.shape[-1:], eps=eps))


def head_quantize(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> Rows:
    """Quantize the last RMSNorm of a spread residual stream, weight included.

    The embedding is the LM head of many models and kept once, so no weight can be part of it: the norm's is applied
    in the order that channels had at first.
    """
    normed = functional.rms_norm(spread(hidden), weight.shape, weight, eps)
    return quantize(spread(normed))


def silu_quantize(gate_up: torch.Tensor, width: int) -> Rows:
    """Quantize rotate(silu(gate) · up) of [num_rows, 2 * size], gate first."""
    gate, up = gate_up.chunk(2, dim=-1)
    return quantize(rotate(functional.silu(gate) * up, width))


def _hadamard(size: int) -> torch.Tensor:
    """[size, size] fp32, for a power of two; unlike that of `kernels.quant`, however small."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
    scaled: torch.Tensor = matrix * size**-0.5
    return scaled
