"""The multi-head twin of a grouped-query model: each query head gets its own copy of its KV head.

It says the same as the model it comes from. What changes is how much of a step's error one KV head can spread: in the
model it reaches all query heads of its group, here each copy is quantized alike, so the errors are equal too; the twin
shows that what grouping saves is memory, and that it costs nothing in the scheme that is used.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.loader import Checkpoint
from engine.model_config import ModelConfig
from engine.models.llama import Change, LlamaModel, Weights

_REPEATED = ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias")


def load_twin(
    folder: Path,
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    max_position: int,
    rotate_values: bool = False,
) -> LlamaModel:
    """Load a model with as many KV heads as query heads."""
    twin = dataclasses.replace(config, num_kv_heads=config.num_heads)
    with contextlib.ExitStack() as stack:
        weights = _RepeatedHeads(Checkpoint(folder, stack, dtype=dtype, device=device), config)
        return LlamaModel(twin, weights, max_position=max_position, rotate_values=rotate_values)


@dataclass(frozen=True, slots=True)
class _RepeatedHeads:
    """Hands out a checkpoint's tensors, KV heads repeated."""

    inner: Weights
    config: ModelConfig

    @property
    def device(self) -> torch.device:
        return self.inner.device

    def take(self, name: str, *shape: int, change: Change | None = None) -> torch.Tensor:
        if not name.endswith(_REPEATED):
            return self.inner.take(name, *shape, change=change)
        config = self.config

        def repeat(tensor: torch.Tensor) -> torch.Tensor:
            heads = tensor.view(config.num_kv_heads, config.head_dim, *tensor.shape[1:])
            repeated = heads.repeat_interleave(config.num_heads // config.num_kv_heads, dim=0).flatten(0, 1)
            return repeated if change is None else change(repeated)

        return self.inner.take(name, config.num_kv_heads * config.head_dim, *shape[1:], change=repeat)
