"""Copies of the first tokens of a block to another one, for all layers and tensors of a row size at once.

A program owns one place inside a block, of one head of one tensor, and performs all copies of it in order. A chain of
copies never crosses places, so it needs no other order than that.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

_CHUNK = 1024  # 16-bit words a program


def copy_blocks(tensors: Sequence[torch.Tensor], copies: Sequence[tuple[int, int, int]]) -> None:
    """See `kernels.copy_blocks`; one launch for all tensors of one row size."""
    alike: dict[tuple[int, int], list[torch.Tensor]] = {}
    for tensor in tensors:
        # the scales of per_channel keys are one row a block
        rows = 1 if tensor.dim() == 3 else tensor.shape[2]
        alike.setdefault((rows, tensor.shape[-1] * tensor.element_size()), []).append(tensor)
    device = tensors[0].device
    work = torch.tensor(copies, dtype=torch.int64, device=device)
    for (rows, row_bytes), group in alike.items():
        # channels come in even numbers, so that a row is whole in words of 16 bits
        addresses = torch.tensor([tensor.data_ptr() for tensor in group], dtype=torch.int64, device=device)
        num_kv_heads = group[0].shape[1]
        _copy_blocks_kernel[(len(group), num_kv_heads, triton.cdiv(rows * row_bytes // 2, _CHUNK))](
            addresses, work, len(copies), NUM_KV_HEADS=num_kv_heads, ROWS=rows, ROW_WORDS=row_bytes // 2, CHUNK=_CHUNK,
            num_warps=4,
        )  # fmt: skip


@triton.jit
def _copy_blocks_kernel(
    addresses_ptr, copies_ptr, num_copies,
    NUM_KV_HEADS: tl.constexpr, ROWS: tl.constexpr, ROW_WORDS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Grid (tensors, KV heads, chunks of a head's words in a block); copies: [n, 3] of src, dst, tokens."""
    cache_ptr = tl.load(addresses_ptr + tl.program_id(0)).to(tl.pointer_type(tl.int16))
    kv_head = tl.program_id(1).to(tl.int64)
    words = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK)
    for index in range(num_copies):
        src = tl.load(copies_ptr + 3 * index)
        dst = tl.load(copies_ptr + 3 * index + 1)
        num_rows = 1 if ROWS == 1 else tl.load(copies_ptr + 3 * index + 2)
        inside = words < num_rows * ROW_WORDS
        copied = tl.load(cache_ptr + (src * NUM_KV_HEADS + kv_head) * (ROWS * ROW_WORDS) + words, mask=inside)
        tl.store(cache_ptr + (dst * NUM_KV_HEADS + kv_head) * (ROWS * ROW_WORDS) + words, copied, mask=inside)
