"""The pieces of a decoder layer as plain functions on tensors."""

from __future__ import annotations

import platform

import torch
from torch.nn import functional

from engine.rope import inverse_frequencies
from engine.rope_config import RopeConfig

_PACK_FOR_ROWS = (
    64  # packed for 64 rows, a weight is as fast at 1 or 512 as packed for these, 5 to 45 % better than for 1
)


class Linear:
    """x · Wᵀ + b, for a weight that never changes.

    On x86 CPUs the weight is kept in the order that oneDNN computes in; plain `linear` brings it into that order at
    every call, which took a third (layers) to a half (LM head) of a decode step's time in bfloat16.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._packed = _can_pack(weight)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_FOR_ROWS) if self._packed else weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [num_tokens, out_features] for x [num_tokens, in_features]."""
        if self._packed:
            product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
            return product
        return functional.linear(x, self._weight, self._bias)


def _can_pack(weight: torch.Tensor) -> bool:
    """Tell whether torch's oneDNN operators are there and fast for this weight."""
    if weight.device.type != "cpu" or platform.machine() not in ("x86_64", "AMD64"):
        return False
    if not (torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return weight · x / sqrt(mean(x²) + eps) over the last dimension, in fp32 inside.

    Source: Zhang and Sennrich 2019.
    """
    return functional.rms_norm(x, weight.shape, weight, eps)


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) · up for [num_tokens, 2 * intermediate_size], gate first."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


class Rotary:
    """Cosines and sines for every position, computed once, so that a position has the same bits in any batch."""

    def __init__(self, rope: RopeConfig, head_dim: int, max_position: int, device: torch.device) -> None:
        angles = torch.outer(torch.arange(max_position, dtype=torch.float32), inverse_frequencies(rope, head_dim))
        cos, sin = angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor
        # [max_position, head_dim]; the sign of rotate_half sits in the sines
        self._cos = torch.cat((cos, cos), dim=-1).to(device)
        self._sin = torch.cat((-sin, sin), dim=-1).to(device)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and signed sines, each [num_tokens, head_dim] fp32, for positions [num_tokens]."""
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)
