"""What one layer of the paged KV cache is made of. Allocated and zeroed at start, never lazily; all contiguous.

The same block id selects codes, scales and, where there is one, the open block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.quant import CODE_MAX, MAX_SCALE, KVFormat


@dataclass(frozen=True, slots=True, eq=False)
class LayerKV:
    """Keys and values of one layer."""

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
