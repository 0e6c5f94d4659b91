"""Holds the worker's real allocation against what `prefixgate plan` said it would be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import torch

from engine.kv_layout import KVLayout
from engine.memory_plan import weight_bytes
from engine.model_config import ModelConfig

TOLERANCE = 0.03
"""Of the plan."""
_NOISE_BYTES = 16 * 2**20
"""Rotary tables and the like; less is not worth a word."""


def disagreements(
    model_config: ModelConfig, layout: KVLayout, device: torch.device, *, num_blocks: int, weights: int, kv_cache: int
) -> list[str]:
    """Say where the allocation is off the plan, one sentence each; empty where it agrees.

    Args:
        model_config: shape of the model.
        layout: of the pool.
        device: of both.
        num_blocks: in the pool.
        weights: bytes that the model takes.
        kv_cache: bytes that the pool takes.
    """
    planned = {
        "weights": (
            weights,
            weight_bytes(model_config, itemsize=layout.itemsize, packs_head=device.type == "cpu"),
        ),
        "the KV cache": (kv_cache, num_blocks * layout.block_bytes),
    }
    return [
        f"memory: {what} take {real / 2**30:.2f} GiB where `prefixgate plan` says {plan / 2**30:.2f} GiB"
        for what, (real, plan) in planned.items()
        if abs(real - plan) > max(TOLERANCE * plan, _NOISE_BYTES)
    ]


def tensor_bytes(root: object) -> int:
    """Return the bytes of all tensors that an object holds, those with common storage once."""
    return sum(dict(_storage(tensor) for tensor in _tensors(root, set())).values())


def _storage(tensor: torch.Tensor) -> tuple[int, int]:
    """Return (identity, bytes); weights that oneDNN packed show no storage."""
    if tensor.layout is not torch.strided:
        return id(tensor), tensor.numel() * tensor.element_size()
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _tensors(root: object, seen: set[int]) -> Iterator[torch.Tensor]:
    if id(root) in seen:
        return
    seen.add(id(root))
    if isinstance(root, torch.Tensor):
        yield root
    elif isinstance(root, torch.nn.Module):
        yield from (*root.parameters(), *root.buffers())
    elif isinstance(root, list | tuple):
        for item in root:
            yield from _tensors(item, seen)
    elif is_dataclass(root):
        for field in fields(root):
            yield from _tensors(getattr(root, field.name), seen)
    else:
        for value in getattr(root, "__dict__", {}).values():
            yield from _tensors(value, seen)
