"""Which rows of the flattened cache a step writes and reads, for the torch backend; numpy until the last moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels.layout import LayerKV
from kernels.plan import IntArray, PagedBatch

_SMALLEST_BUCKET = 7  # 2^7 tokens: below that, padding is cheaper than one more group of decode rows


@dataclass(frozen=True, slots=True, eq=False)
class Writes:
    """Where a step's keys and values go; the rows are those of one token and KV head, heads within tokens."""

    cache_rows: torch.Tensor  # [num_tokens * num_kv_heads]
    open_rows: torch.Tensor | None = None  # the same, of key_open
    filled_blocks: torch.Tensor | None = None  # [num_filled]: blocks that this step fills
    filled_slots: torch.Tensor | None = None  # [num_filled]: where they are open


@dataclass(frozen=True, slots=True, eq=False)
class Reads:
    """Cached tokens to gather, tokens within KV heads within requests."""

    cache_rows: torch.Tensor  # [num_requests * num_kv_heads * len]
    own: torch.Tensor | None = None  # indices into cache_rows of keys to take from open blocks instead
    open_rows: torch.Tensor | None = None  # for each of own, the row of key_open


@dataclass(frozen=True, slots=True, eq=False)
class DecodeGroup:
    """Requests of one new token and of like length, padded to the longest."""

    tokens: torch.Tensor  # [num_requests], rows of the query
    reads: Reads
    mask: torch.Tensor | None  # [num_requests, 1, 1, padded_len], 0 or -inf; None: nothing is padded


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """The new tokens [start, end) of one request, and the prefix before them."""

    start: int
    end: int
    reads: Reads
    mask: torch.Tensor | None  # [end - start, len], 0 or -inf; None: no prefix, plainly causal


class RowMap:
    """Turns positions of requests into rows."""

    def __init__(self, batch: PagedBatch, layer: LayerKV) -> None:
        self._batch = batch
        self._open_slots = batch.open_slots if layer.format.per_channel_keys else None
        self._block_size = layer.block_size
        self._heads = np.arange(layer.key.shape[1])[:, None]
        self._device = layer.key.device
        self._mask_dtype = torch.float32 if layer.format.quantized else layer.key.dtype

    def writes(self) -> Writes:
        """Rows of the step's own tokens."""
        batch, size = self._batch, self._block_size
        cache_rows = self._tensor(self._rows(*np.divmod(batch.slot_mapping[:, None, None], size)))
        if self._open_slots is None:
            return Writes(cache_rows)
        owner = np.repeat(np.arange(len(batch.seq_lens)), batch.query_lens)
        positions = np.arange(len(owner)) + (batch.seq_lens - batch.query_start_loc[1:])[owner]
        open_slots = self._open_slots[owner, positions // size]
        filled = positions % size == size - 1
        return Writes(
            cache_rows,
            self._tensor(self._rows(open_slots[:, None, None], positions[:, None, None] % size)),
            self._tensor(batch.slot_mapping[filled] // size),
            self._tensor(open_slots[filled]),
        )

    def decode_groups(self) -> Iterator[DecodeGroup]:
        """Group the decoding requests by the power of two above their length, so that padding is at most half."""
        batch = self._batch
        decoding = np.flatnonzero(batch.query_lens == 1)
        exponents = np.ceil(np.log2(batch.seq_lens[decoding])).clip(min=_SMALLEST_BUCKET)
        for exponent in np.unique(exponents):
            requests = decoding[exponents == exponent]
            last = batch.seq_lens[requests, None] - 1
            everything = np.arange(last.max() + 1)
            positions = np.minimum(everything, last)
            own = positions // self._block_size == last // self._block_size
            mask = None if (positions == everything).all() else self._mask((everything <= last)[:, None, None])
            tokens = self._tensor(batch.query_start_loc[requests])
            yield DecodeGroup(tokens, self._reads(requests, positions, own), mask)

    def chunks(self) -> Iterator[Chunk]:
        """Requests of several new tokens."""
        batch = self._batch
        for request in np.flatnonzero(batch.query_lens > 1):
            start, end = batch.query_start_loc[request : request + 2].tolist()
            seq_len = int(batch.seq_lens[request])
            queries = np.arange(seq_len - (end - start), seq_len)[:, None]
            positions = np.arange(seq_len)
            if self._open_slots is None:
                mask = self._mask(positions <= queries) if queries[0, 0] else None
                own = np.zeros(0, dtype=np.bool_)
            else:
                positions, own, mask = self._with_open_blocks(queries, seq_len)
            yield Chunk(start, end, self._reads(np.array([request]), positions[None], own[None]), mask)

    def _with_open_blocks(
        self, queries: IntArray, seq_len: int
    ) -> tuple[IntArray, npt.NDArray[np.bool_], torch.Tensor]:
        """Earlier blocks as quantized, then once more, unquantized, the blocks that the queries themselves lie in."""
        size = self._block_size
        earlier = np.arange((seq_len - 1) // size * size)
        open_ones = np.arange(queries[0, 0] // size * size, seq_len)
        own_block = open_ones // size == queries // size
        visible = np.concatenate((earlier // size < queries // size, own_block & (open_ones <= queries)), axis=1)
        own = np.arange(visible.shape[1]) >= len(earlier)
        return np.concatenate((earlier, open_ones)), own, self._mask(visible)

    def _reads(self, requests: IntArray, positions: IntArray, own: npt.NDArray[np.bool_]) -> Reads:
        """For positions [num_requests, len]; own, like positions, says which keys come from open blocks."""
        batch = self._batch
        index, offset = np.divmod(positions, self._block_size)
        blocks = batch.block_tables[requests[:, None], index]
        cache_rows = self._tensor(self._rows(blocks[:, None], offset[:, None]))
        if self._open_slots is None:
            return Reads(cache_rows)
        own = np.broadcast_to(own[:, None], (len(requests), len(self._heads), positions.shape[1])).reshape(-1)
        open_rows = self._rows(self._open_slots[requests[:, None], index][:, None], offset[:, None])
        return Reads(cache_rows, self._tensor(np.flatnonzero(own)), self._tensor(open_rows[own]))

    def _rows(self, blocks: IntArray, offsets: IntArray) -> IntArray:
        """Flat rows for [..., 1, len] blocks and offsets: heads before tokens."""
        rows: IntArray = ((blocks * len(self._heads) + self._heads) * self._block_size + offsets).reshape(-1)
        return rows

    def _mask(self, visible: npt.NDArray[np.bool_]) -> torch.Tensor:
        return torch.where(torch.from_numpy(visible).to(self._device), 0.0, -torch.inf).to(self._mask_dtype)

    def _tensor(self, array: IntArray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
