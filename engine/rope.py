"""The angles of rotary position embedding: how fast each pair of channels turns, with the scalings that are fixed."""

from __future__ import annotations

import math

import torch

from engine.rope_config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Return [head_dim / 2] fp32: radians a token, slower for every further pair of channels.

    Source: Su et al. 2021; the scaled kinds follow modeling_rope_utils of transformers.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.kind == "default":
        return frequencies
    stretched = frequencies / rope.factor
    if rope.kind == "linear":
        return stretched
    kept = _kept_by_llama3(rope, frequencies) if rope.kind == "llama3" else _kept_by_yarn(rope, head_dim)
    return kept * frequencies + (1 - kept) * stretched


def _kept_by_llama3(rope: RopeConfig, frequencies: torch.Tensor) -> torch.Tensor:
    """1 for wavelengths well inside the old context (kept), 0 for those well beyond it (stretched), blended between."""
    wavelengths = 2 * math.pi / frequencies
    turns = rope.original_max_position / wavelengths
    return ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0.0, 1.0)


def _kept_by_yarn(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """1 for pairs that turn more than beta_fast times within the old context, 0 for less than beta_slow, a ramp between.

    Source: Peng et al. 2023, §3.2.
    """

    def pair_that_turns(num_turns: float) -> float:
        ratio = rope.original_max_position / (num_turns * 2 * math.pi)
        return head_dim * math.log(ratio) / (2 * math.log(rope.theta))

    low, high = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001
    return 1 - ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0.0, 1.0)
