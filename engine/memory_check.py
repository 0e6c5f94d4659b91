"""Holds the worker's real allocation against what `prefixgate plan` said it would be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import numpy as np
import torch

from engine.kv_layout import KVLayout
from engine.memory_plan import int8_weight_bytes, weight_bytes
from engine.model_config import ModelConfig, ModelShape

TOLERANCE = 0.03
"""Of the plan."""
_NOISE_BYTES = 16 * 2**20
"""Rotary tables and the like; less is not worth a word."""


def disagreements(
    model: ModelShape,
    layout: KVLayout,
    device: torch.device,
    *,
    int8_weights: bool,
    num_blocks: int,
    weights: int,
    kv_cache: int,
) -> list[str]:
    """Say where the allocation is off the plan, one sentence each; empty where it agrees.

    Args:
        model: its shape; of one in the modules of transformers, the weights are not planned.
        layout: of the pool.
        device: of both.
        int8_weights: the weights are quantized.
        num_blocks: in the pool.
        weights: bytes that the model takes.
        kv_cache: bytes that the pool takes.
    """
    planned: dict[str, tuple[int, int]] = {}
    if isinstance(model, ModelConfig):
        packs_head = device.type == "cpu"
        unquantized = weight_bytes(model, itemsize=layout.itemsize, packs_head=packs_head)
        planned["weights"] = weights, int8_weight_bytes(model) if int8_weights else unquantized
    planned["the KV cache"] = kv_cache, num_blocks * layout.block_bytes
    return [
        f"memory: {what} take {real / 2**30:.2f} GiB where `prefixgate plan` says {plan / 2**30:.2f} GiB"
        for what, (real, plan) in planned.items()
        if abs(real - plan) > max(TOLERANCE * plan, _NOISE_BYTES)
    ]


def tensor_bytes(root: object) -> int:
    """Return the bytes of all tensors and arrays that an object holds, those with common storage once."""
    return sum(dict(_storage(tensor) for tensor in _tensors(root, set())).values())


def _storage(tensor: torch.Tensor | np.ndarray) -> tuple[int, int]:
    """Return (identity, bytes); weights that oneDNN packed show no storage."""
    if isinstance(tensor, np.ndarray):
        return tensor.ctypes.data, tensor.nbytes
    if tensor.layout is not torch.strided:
        return id(tensor), tensor.numel() * tensor.element_size()
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _tensors(root: object, seen: set[int]) -> Iterator[torch.Tensor | np.ndarray]:
    if id(root) in seen:
        return
    seen.add(id(root))
    if isinstance(root, torch.Tensor | np.ndarray):
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
