"""Copies of blocks on the CPU, as numpy views: torch takes several times as long to slice a tensor as to copy a block."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def copy_blocks(tensors: Sequence[torch.Tensor], copies: Sequence[tuple[int, int, int]]) -> None:
    """Copy in each tensor, in order; the spec of `kernels.gpu.copy_blocks`, too.

    Args:
        tensors: [num_blocks, num_kv_heads, block_size, row], of which slots are copied, or [num_blocks, num_kv_heads,
            row], of which a block is copied whole.
        copies: (src, dst, num_tokens).
    """
    for tensor in tensors:
        blocks = (tensor.view(torch.int16) if tensor.element_size() == 2 else tensor).numpy()  # numpy has no bf16
        for src, dst, num_tokens in copies:
            if blocks.ndim == 3:
                blocks[dst] = blocks[src]
            else:
                blocks[dst, :, :num_tokens] = blocks[src, :, :num_tokens]
