"""What one layer of the paged KV cache is made of. Allocated and zeroed at start, never lazily; all contiguous.

The same block id selects codes, scales and, where there is one, the open block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kernels.quant import CODE_MAX, MAX_SCALE, KVFormat

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class LayerKV:
    """Keys and values of one layer.

    Raises: ValueError: tensors that do not fit together, or are not contiguous.
    """

    format: KVFormat
    key: torch.Tensor
    """[num_blocks, num_kv_heads, block_size, head_dim]: int8 codes, or the values themselves when not quantized."""
    value: torch.Tensor
    """Like key."""
    key_scale: torch.Tensor | None = None
    """fp16 [num_blocks, num_kv_heads, block_size, num_groups]; per_channel: [num_blocks, num_kv_heads, head_dim]."""
    value_scale: torch.Tensor | None = None
    """fp16 [num_blocks, num_kv_heads, block_size, num_groups]."""
    key_open: torch.Tensor | None = None
    """per_channel only: [num_open, num_kv_heads, block_size, head_dim] in the model's dtype, of blocks that are not
    full, or were filled in this very step."""

    def __post_init__(self) -> None:
        num_blocks, num_kv_heads, block_size, head_dim = self.key.shape
        shapes: dict[str, tuple[torch.Tensor | None, tuple[int, ...]]]
        shapes = {"value": (self.value, tuple(self.key.shape))}
        if self.format.quantized:
            groups = self.format.num_groups(head_dim)
            per_token = (num_blocks, num_kv_heads, block_size, groups)
            per_channel = (num_blocks, num_kv_heads, head_dim)
            shapes["key_scale"] = (self.key_scale, per_channel if self.format.per_channel_keys else per_token)
            shapes["value_scale"] = (self.value_scale, per_token)
        if self.format.per_channel_keys:
            num_open = 0 if self.key_open is None else len(self.key_open)
            shapes["key_open"] = (self.key_open, (num_open, num_kv_heads, block_size, head_dim))
        for name, (tensor, shape) in shapes.items():
            if tensor is None or tuple(tensor.shape) != shape or not tensor.is_contiguous():
                got = None if tensor is None else list(tensor.shape)
                raise ValueError(f"layer.{name}: got {got}, wanted {list(shape)}, contiguous")

    @cached_property
    def arrays(self) -> tuple[Array, Array, Array, Array]:
        """On a CPU: keys, values and their scales, flat, as `as_array` gives them; no scales are an empty array."""
        key_scale, value_scale = (
            np.zeros(0, np.uint16) if scale is None else as_array(scale.view(-1)).view(np.uint16)
            for scale in (self.key_scale, self.value_scale)
        )
        return as_array(self.key.view(-1)), as_array(self.value.view(-1)), key_scale, value_scale

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self.key.shape[2]

    @property
    def limit(self) -> float:
        """The largest absolute value that can be stored; a row with a value beyond it is flagged, like one with NaN."""
        if not self.format.quantized:
            return torch.finfo(self.key.dtype).max
        limit = CODE_MAX * MAX_SCALE
        return limit if self.key_open is None else min(limit, torch.finfo(self.key_open.dtype).max)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All that a block id selects, for copies and sizes; not the open blocks."""
        found = (self.key, self.value, self.key_scale, self.value_scale)
        return tuple(tensor for tensor in found if tensor is not None)


def as_array(tensor: torch.Tensor) -> Array:
    """Return the same memory as numba takes it: bf16 as uint16, fp16 as int16."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    if tensor.dtype == torch.float16:
        return tensor.view(torch.int16).numpy()
    array: Array = tensor.numpy()
    return array
