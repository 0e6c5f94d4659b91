"""The rows of a quality report: formats that are served, and reference rows that are only emulated.

An emulated row stores what quantizing and restoring would give in an unquantized cache, so it needs no kernels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from engine.kv_layout import KV_FORMATS, SKIP_NONE, check_skip_layers
from kernels.quant import dequantize, hadamard, quantize

Emulation = Callable[[torch.Tensor], torch.Tensor]
"""Keys or values of some tokens, [num_tokens, num_kv_heads, head_dim] fp32, to what a reader would get."""

INT8_WEIGHTS = "w8a8"
"""Names rows with int8 weights and activations."""
_FP8_MAX = 448.0
_INT4_MAX = 7


@dataclass(frozen=True, slots=True)
class Scheme:
    """One row."""

    name: str
    """As it was asked for: `FORMAT` or `FORMAT@SKIP`, with + for the commas of a list; `w8a8` or `w8a8:FORMAT@SKIP` for
    int8 weights."""
    kv_cache_dtype: str
    """Of the cache; `auto` where it is emulated."""
    kv_skip_layers: str
    """As for `serve`."""
    emulation: Emulation | None = None
    int8_weights: bool = False
    """As `--quantization int8`."""

    @property
    def served(self) -> bool:
        """Tell whether `serve` has it, so that the gates hold for it."""
        return self.emulation is None


def parse_scheme(name: str) -> Scheme:
    """Read a name such as `int8/per_token`, `int8/per_token@first:1+last:1`, `int4/hadamard` or `w8a8:int8/hadamard`.

    Raises: ValueError: another name.
    """
    if name == INT8_WEIGHTS or name.startswith(f"{INT8_WEIGHTS}:"):
        inner = parse_scheme(name.removeprefix(INT8_WEIGHTS).removeprefix(":") or "auto")
        return dataclasses.replace(inner, name=name, int8_weights=True)
    kind, _, skip = name.partition("@")
    skip = skip.replace("+", ",") or SKIP_NONE
    check_skip_layers(skip)
    if kind in EMULATIONS:
        if skip != SKIP_NONE:
            raise ValueError(f"--formats: got {name!r}, but reference rows take no layers to skip")
        return Scheme(name, "auto", SKIP_NONE, EMULATIONS[kind])
    if kind not in KV_FORMATS:
        known = ", ".join((*KV_FORMATS, *EMULATIONS, INT8_WEIGHTS))
        raise ValueError(f"--formats: got {kind!r}, wanted one of {known}")
    return Scheme(name, kind, skip)


def _fp8_e4m3(x: torch.Tensor) -> torch.Tensor:
    """E4M3, a scale of 1: the format's own range does the rest, as servers use it without calibration."""
    return x.clamp(-_FP8_MAX, _FP8_MAX).to(torch.float8_e4m3fn).float()


def _bf16(x: torch.Tensor) -> torch.Tensor:
    """What most servers call unquantized."""
    return x.bfloat16().float()


def _int4(x: torch.Tensor) -> torch.Tensor:
    """Symmetric absmax a token and head, codes in [-7, 7], fp16 scales."""
    scales = (x.abs().amax(dim=-1, keepdim=True) / _INT4_MAX).clamp_min(2.0**-24).half().float()
    return (x / scales).round().clamp(-_INT4_MAX, _INT4_MAX) * scales


def _int4_rotated(x: torch.Tensor) -> torch.Tensor:
    rotation = hadamard(x.shape[-1], device=x.device)
    return _int4(x @ rotation) @ rotation


def _one_scale(x: torch.Tensor) -> torch.Tensor:
    """int8 with one scale a token, over all its heads."""
    return dequantize(*quantize(x.flatten(1))).view_as(x)


EMULATIONS: Mapping[str, Emulation] = MappingProxyType(
    {
        "bf16": _bf16,
        "fp8_e4m3": _fp8_e4m3,
        "int4/per_token": _int4,
        "int4/hadamard": _int4_rotated,
        "int8/one_scale": _one_scale,
    }
)
