"""What every loaded model offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from engine.kv_cache import KVCache
from engine.model_config import ModelConfig
from kernels.plan import StepPlan


class Model(Protocol):
    """A loaded model: `LlamaModel` or `Int8Llama`."""

    config: ModelConfig
    """Its shape."""

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        sample_rows: torch.Tensor,
        cache: KVCache,
        plans: Sequence[StepPlan],
    ) -> torch.Tensor:
        """Run one step; see `LlamaModel.forward`."""
        ...
