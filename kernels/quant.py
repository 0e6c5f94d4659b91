"""The INT8 scheme of the KV cache, in one place: formats, rounding, rotation. Torch, readable, and the oracle.

Symmetric absmax, codes in [-127, 127], fp16 scales, and one exact rounding rule that every backend follows:

    scale = fp16(max(absmax / 127, 2^-24));  code = clamp(round_half_even(x / fp32(scale)), -127, 127)

with absmax and both divisions in fp32, true division. Then |x - code * scale| <= scale / 2 wherever nothing was
clamped. A zero row has codes 0 and the smallest scale. A row of a step that holds a value that is not finite, or is
beyond what the cache can hold, is stored as zeros and flagged (`LayerKV.limit`, `kernels.ops.store_kv`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

CODE_MAX = 127
MIN_SCALE = 2.0**-24
"""The smallest fp16 number: a scale is never 0."""
MAX_SCALE = 65504.0
"""The largest finite fp16 number: CODE_MAX times this is the largest value that can be quantized."""
GROUP_SIZES = (32, 64, 128)
SERVED_FORMATS = (
    "auto",
    "int8/hadamard",
    "int8/per_token",
    *(f"int8/per_group_{size}" for size in GROUP_SIZES),
    "int8/per_channel",
)


@dataclass(frozen=True, slots=True)
class KVFormat:
    """How keys and values lie in the cache."""

    name: str
    quantized: bool
    group_size: int | None = None
    """Channels that share a scale; None: the whole head."""
    rotated: bool = False
    """Keys and queries are multiplied by the Hadamard matrix of a head after RoPE; values by folded weights."""
    per_channel_keys: bool = False
    """Keys have a scale a block and channel, and their last, open block stays unquantized; values are per token."""

    def num_groups(self, head_dim: int) -> int:
        """Scales a token and head. Raises: ValueError: the group does not divide the head."""
        if self.group_size is None or self.group_size >= head_dim:
            return 1
        if head_dim % self.group_size:
            raise ValueError(f"kv_cache_dtype: {self.name} does not divide a head of {head_dim} channels")
        return head_dim // self.group_size


def parse_kv_format(name: str) -> KVFormat:
    """Read a format of the grammar. Raises: ValueError: names what came and what was wanted."""
    if name not in SERVED_FORMATS:
        raise ValueError(f"kv_cache_dtype: got {name!r}, wanted one of {', '.join(SERVED_FORMATS)}")
    if name == "auto":
        return KVFormat(name, quantized=False)
    granularity = name.removeprefix("int8/")
    group = granularity.removeprefix("per_group_")
    return KVFormat(
        name,
        quantized=True,
        group_size=int(group) if group != granularity else None,
        rotated=granularity == "hadamard",
        per_channel_keys=granularity == "per_channel",
    )


def quantize(x: torch.Tensor, num_groups: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize heads by the rule above.

    Args:
        x: [..., head_dim], any float dtype.
        num_groups: scales a head.

    Returns:
        codes [..., head_dim] int8 and scales [..., num_groups] fp16.
    """
    groups = x.float().reshape(*x.shape[:-1], num_groups, x.shape[-1] // num_groups)
    groups = torch.where(groups.isfinite(), groups, 0.0)
    scales = (groups.abs().amax(dim=-1, keepdim=True) / CODE_MAX).clamp_min(MIN_SCALE).half()
    codes = (groups / scales.float()).round().clamp(-CODE_MAX, CODE_MAX)
    return codes.flatten(-2).to(torch.int8), scales.squeeze(-1)


def dequantize(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return codes [..., head_dim] times scales [..., num_groups], [..., head_dim] fp32."""
    groups = codes.float().reshape(*scales.shape, codes.shape[-1] // scales.shape[-1])
    return (groups * scales.float().unsqueeze(-1)).flatten(-2)


def hadamard(head_dim: int, *, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return the rotation of one head, [head_dim, head_dim] fp32: symmetric and orthonormal, so its own inverse.

    A head that is no power of two is rotated in blocks of its largest power-of-two factor.

    Raises: ValueError: that factor is below 16.
    """
    size = head_dim & -head_dim
    if size < 16:
        raise ValueError(f"head_dim: got {head_dim}, wanted a multiple of 16 for a rotated cache")
    block = torch.ones(1, 1)
    while len(block) < size:
        block = torch.cat((torch.cat((block, block), 1), torch.cat((block, -block), 1)), 0)
    return torch.kron(torch.eye(head_dim // size), block * size**-0.5).to(device)
