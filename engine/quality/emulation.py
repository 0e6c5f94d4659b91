"""A step plan that stores what a reader of another format would get, in an unquantized cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.quality.schemes import Emulation
from kernels.layout import LayerKV
from kernels.plan import PagedBatch, StepPlan


@dataclass(frozen=True, slots=True, eq=False)
class EmulatedPlan:
    """Stores as the plan it wraps does, then replaces the rows just written."""

    inner: StepPlan
    batch: PagedBatch
    emulation: Emulation

    def store_kv(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        layer: LayerKV,
    ) -> torch.Tensor:
        """See `kernels.ops.store_kv`."""
        rotated = self.inner.store_kv(query, key, value, rotary, layer)
        slots = torch.from_numpy(self.batch.slot_mapping).to(layer.key.device)
        block, offset = slots // layer.block_size, slots % layer.block_size
        for cache in (layer.key, layer.value):
            cache[block, :, offset] = self.emulation(cache[block, :, offset].float()).to(cache.dtype)
        return rotated

    def paged_attention(self, query: torch.Tensor, layer: LayerKV, scale: float) -> torch.Tensor:
        """See `kernels.ops.paged_attention`."""
        return self.inner.paged_attention(query, layer, scale)

    def bad_rows(self) -> torch.Tensor:
        """See `kernels.ops.bad_rows`."""
        return self.inner.bad_rows()
