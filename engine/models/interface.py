"""The seam between the model runner and whatever computes a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from engine.kv_cache import KVCache
from engine.model_config import ModelShape
from kernels.plan import StepPlan


class Model(Protocol):
    """A loaded model: `LlamaModel`, `Int8Llama` or `GenericModel`."""

    @property
    def config(self) -> ModelShape:
        """What is cached of a token, and how many tokens there may be."""
        ...

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        sample_rows: torch.Tensor,
        cache: KVCache,
        plans: Sequence[StepPlan],
    ) -> torch.Tensor:
        """Run one step; writes its keys and values to the cache.

        Args:
            input_ids: [num_tokens], int64.
            positions: [num_tokens], int64.
            sample_rows: [num_sampled], int64: the rows whose logits are wanted.
            cache: the paged cache.
            plans: of this step, one a layer.

        Returns:
            Logits [num_sampled, vocab_size] in fp32.
        """
        ...
