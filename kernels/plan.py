"""What one step does to the cache: which slots it writes and which blocks its rows read.

A plan is made once a step and used in every layer, so that masks and indices are not computed once a layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from kernels.layout import LayerKV

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PagedBatch:
    """The rows of one step, request after request.

    Row t of request r, in [query_start_loc[r], query_start_loc[r + 1]), sits at position
    seq_lens[r] - query_start_loc[r + 1] + t and attends to the positions up to its own.
    """

    slot_mapping: IntArray
    """[num_tokens]: block_id * block_size + offset that a row's key and value are written to."""
    query_start_loc: IntArray
    """[num_requests + 1]: first row of each request."""
    seq_lens: IntArray
    """[num_requests]: tokens of a request after this step's writes."""
    block_tables: IntArray
    """[num_requests, max_blocks]: block ids in order; what is past a request's last block is never read."""
    open_slots: IntArray | None = None
    """per_channel only, like block_tables: where in `LayerKV.key_open` a block lies, -1 where it is quantized."""

    @property
    def query_lens(self) -> IntArray:
        """[num_requests]: rows of each request."""
        return np.diff(self.query_start_loc)


class StepPlan(Protocol):
    """One backend's preparation of a `PagedBatch`."""

    def store_kv(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        layer: LayerKV,
    ) -> torch.Tensor:
        """See `kernels.ops.store_kv`."""
        ...

    def paged_attention(self, query: torch.Tensor, layer: LayerKV, scale: float) -> torch.Tensor:
        """See `kernels.ops.paged_attention`."""
        ...

    def bad_rows(self) -> torch.Tensor:
        """See `kernels.ops.bad_rows`."""
        ...


@runtime_checkable
class Bindable(Protocol):
    """A plan that can prepare a layer's calls once for all layers."""

    def bind(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        layer: LayerKV,
        scale: float,
    ) -> Callable[[LayerKV], torch.Tensor]:
        """See `kernels.ops.bind`."""
        ...


class StaticPlan(StepPlan, Protocol):
    """A plan of decode rows, one a request, that is filled anew for every step; its tensors stay where they are."""

    def update(self, batch: PagedBatch) -> None:
        """Put a step of as many requests, one row each, into the plan, and clear its flags of bad rows."""
        ...


class ReplannedPlan:
    """A static plan for backends without graphs: it hands on to a plan that is made anew for every step."""

    def __init__(self, make: Callable[[PagedBatch], StepPlan]) -> None:
        self._make = make
        self._plan: StepPlan | None = None

    def update(self, batch: PagedBatch) -> None:
        """See `StaticPlan`."""
        self._plan = self._make(batch)

    @property
    def _current(self) -> StepPlan:
        assert self._plan is not None
        return self._plan

    def store_kv(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        layer: LayerKV,
    ) -> torch.Tensor:
        """See `kernels.ops.store_kv`."""
        return self._current.store_kv(query, key, value, rotary, layer)

    def paged_attention(self, query: torch.Tensor, layer: LayerKV, scale: float) -> torch.Tensor:
        """See `kernels.ops.paged_attention`."""
        return self._current.paged_attention(query, layer, scale)

    def bad_rows(self) -> torch.Tensor:
        """See `kernels.ops.bad_rows`."""
        return self._current.bad_rows()
