"""The Triton backend: where each row goes, decided once a step on the host, uploaded at once, used in every layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from kernels.gpu.geometry import queries_a_tile
from kernels.gpu.paged_decode import (
    DETERMINISTIC_SPLIT_TOKENS,
    DecodeRows,
    Partials,
    choose_split_tokens,
    merge_partials,
    paged_decode,
)
from kernels.gpu.paged_prefill import PrefillTiles, paged_prefill
from kernels.gpu.shared_prefix_decode import (
    SharedRun,
    SharedTiles,
    find_shared_runs,
    shared_prefix_decode,
)
from kernels.gpu.store_kv import OpenBlocks, store_kv
from kernels.layout import LayerKV
from kernels.plan import IntArray, PagedBatch


@dataclass(frozen=True, slots=True)
class Tuning:
    """What may be chosen for speed; results agree to rounding whatever it is."""

    split_tokens: int | None = None
    """Positions a split of the decode kernel; None: by the number of programs that fill the device."""
    cascade_min_tokens: int = 1024
    """Shortest common run that is read once for all."""
    cascade_min_requests: int = 8
    """Fewest requests that make it worth a launch and partials."""


@dataclass(frozen=True, slots=True, eq=False)
class TritonPlan:
    """One step on the device. Tiles depend on the query heads, so they are laid out when the first query comes."""

    batch: PagedBatch
    slots: torch.Tensor  # [num_tokens] int64
    tables: torch.Tensor  # [num_requests, max_blocks] int32
    bad: torch.Tensor  # [num_tokens] bool
    alone: IntArray  # rows of the query that attend by themselves
    runs: tuple[SharedRun, ...]
    rows: DecodeRows | None
    open_blocks: OpenBlocks | None  # per_channel only
    prefill_tiles: dict[int, PrefillTiles | None] = field(default_factory=dict)  # by tokens a tile
    shared_tiles: dict[int, SharedTiles] = field(default_factory=dict)  # the same

    @classmethod
    def build(
        cls,
        batch: PagedBatch,
        layer: LayerKV,
        *,
        deterministic: bool = False,
        cascade: bool = True,
        tuning: Tuning | None = None,
    ) -> TritonPlan:
        """Plan a step; deterministic: every row attends by itself, in splits of a fixed length.

        So it does in per_channel, too, where a row reads its own block as nobody else does.
        """
        tuning = tuning or Tuning()
        device, block_size = layer.key.device, layer.block_size
        owners = np.repeat(np.arange(len(batch.seq_lens)), batch.query_lens)
        singly = deterministic or layer.format.per_channel_keys
        alone = np.arange(len(owners)) if singly else np.flatnonzero(batch.query_lens[owners] == 1)
        runs: list[SharedRun] = []
        if cascade and not singly:
            runs = find_shared_runs(
                batch, block_size, min_tokens=tuning.cascade_min_tokens, min_requests=tuning.cascade_min_requests
            )
        split_tokens = DETERMINISTIC_SPLIT_TOKENS if deterministic else tuning.split_tokens
        return cls(
            batch=batch,
            slots=torch.from_numpy(batch.slot_mapping).to(device, non_blocking=True),
            tables=_upload([batch.block_tables], device)[0],
            bad=torch.zeros(len(owners), dtype=torch.bool, device=device),
            alone=alone,
            runs=tuple(runs),
            rows=_decode_rows(batch, alone, owners, runs, split_tokens, layer) if len(alone) else None,
            open_blocks=_open_blocks(batch, owners, block_size, device) if layer.format.per_channel_keys else None,
        )

    def store_kv(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        layer: LayerKV,
    ) -> torch.Tensor:
        """See `kernels.ops.store_kv`."""
        return store_kv(
            query, key, value, rotary, layer, slots=self.slots, open_blocks=self.open_blocks, bad_rows=self.bad
        )

    def paged_attention(self, query: torch.Tensor, layer: LayerKV, scale: float) -> torch.Tensor:
        """See `kernels.ops.paged_attention`."""
        query = query.contiguous()
        output = torch.empty_like(query)
        tile = queries_a_tile(query, layer)
        if tile not in self.prefill_tiles:
            self.prefill_tiles[tile] = self._lay_out_chunks(tile)
        chunks = self.prefill_tiles[tile]
        if chunks is not None:
            paged_prefill(query, layer, chunks, self.tables, scale=scale, output=output)
        if self.rows is not None:
            self._decode(query, layer, self.rows, scale, output)
        return output

    def bad_rows(self) -> torch.Tensor:
        """See `kernels.ops.bad_rows`."""
        return self.bad

    def _decode(
        self, query: torch.Tensor, layer: LayerKV, rows: DecodeRows, scale: float, output: torch.Tensor
    ) -> None:
        partials = Partials.empty(query, rows) if rows.max_partials > 1 else None
        if self.runs and partials is not None:
            tile = queries_a_tile(query, layer)
            if tile not in self.shared_tiles:
                self.shared_tiles[tile] = self._lay_out_runs(rows, tile)
            tiles = self.shared_tiles[tile]
            shared_prefix_decode(query, layer, tiles, rows, self.tables, scale=scale, partials=partials)
        paged_decode(query, layer, rows, self.tables, scale=scale, output=output, partials=partials)
        if partials is not None:
            merge_partials(partials, rows, output)

    def _lay_out_chunks(self, tile_tokens: int) -> PrefillTiles | None:
        """Cut the chunks into tiles; None: there is no chunk."""
        batch = self.batch
        tiles: list[tuple[int, int, int, int]] = []
        if len(self.alone) < len(batch.slot_mapping):
            for request in np.flatnonzero(batch.query_lens > 1).tolist():
                first, last = batch.query_start_loc[request : request + 2].tolist()
                shift = int(batch.seq_lens[request]) - last
                for token in range(first, last, tile_tokens):
                    tiles.append((request, token, token + shift, min(tile_tokens, last - token)))
        if not tiles:
            return None
        return PrefillTiles(*_upload(list(np.array(tiles).T), self.tables.device))

    def _lay_out_runs(self, rows: DecodeRows, tile_members: int) -> SharedTiles:
        """Cut the runs' members into tiles."""
        row_of = {int(self.batch.query_start_loc[:-1].searchsorted(token)): row for row, token in enumerate(self.alone)}
        members = np.array([row_of[request] for run in self.runs for request in run.requests.tolist()])
        tiles = np.array(list(_tiles(self.runs, tile_members)))
        uploaded = _upload([members, *tiles.T], self.tables.device)
        longest = max(run.num_tokens for run in self.runs)
        return SharedTiles(-(-longest // rows.split_tokens), *uploaded)


def _tiles(runs: tuple[SharedRun, ...], tile_members: int) -> Iterator[tuple[int, int, int]]:
    """(first member, members, tokens of the run) of each tile."""
    first = 0
    for run in runs:
        last = first + len(run.requests)
        for start in range(first, last, tile_members):
            yield start, min(tile_members, last - start), run.num_tokens
        first = last


def _decode_rows(
    batch: PagedBatch,
    alone: IntArray,
    owners: IntArray,
    runs: list[SharedRun],
    split_tokens: int | None,
    layer: LayerKV,
) -> DecodeRows:
    """Say what each row that attends by itself reads, and in how many splits."""
    requests = owners[alone]
    shift = batch.seq_lens - batch.query_start_loc[1:]
    limits = alone + shift[requests] + 1
    prefix = np.zeros(len(batch.seq_lens), dtype=np.int64)
    for run in runs:
        prefix[run.requests] = run.num_tokens
    starts = prefix[requests]
    if split_tokens is None:
        lengths = np.concatenate((limits - starts, [run.num_tokens for run in runs])).astype(np.int64)
        split_tokens = choose_split_tokens(lengths, layer.key.shape[1], num_multiprocessors(layer.key.device))
    before = -(-starts // split_tokens)
    own = -(-(limits - starts) // split_tokens)
    open_slots = (
        np.zeros_like(limits)
        if batch.open_slots is None
        else _own_blocks(batch.open_slots, requests, limits - 1, layer.block_size)
    )
    arrays = [alone, requests, starts, limits, before, before + own, open_slots]
    return DecodeRows(split_tokens, int(own.max()), int((before + own).max()), *_upload(arrays, layer.key.device))


def _open_blocks(batch: PagedBatch, owners: IntArray, block_size: int, device: torch.device) -> OpenBlocks:
    """Say where the step's keys lie until their blocks are full, and which blocks it fills."""
    assert batch.open_slots is not None
    positions = np.arange(len(owners)) + (batch.seq_lens - batch.query_start_loc[1:])[owners]
    open_slots = _own_blocks(batch.open_slots, owners, positions, block_size)
    full = positions % block_size == block_size - 1
    filled = np.stack((batch.slot_mapping[full] // block_size, open_slots[full]), axis=1)
    slots = torch.from_numpy(open_slots * block_size + positions % block_size).to(device, non_blocking=True)
    return OpenBlocks(slots, *_upload([filled], device))


def _own_blocks(per_block: IntArray, requests: IntArray, positions: IntArray, block_size: int) -> IntArray:
    """[num_rows]: of [num_requests, max_blocks], what belongs to the block that each position is in."""
    return per_block[requests, positions // block_size]


def _upload(arrays: list[IntArray], device: torch.device) -> list[torch.Tensor]:
    """Copy to the device as int32, all at once."""
    flat = torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays]).astype(np.int32))
    if device.type == "cuda":
        flat = flat.pin_memory()
    parts = flat.to(device, non_blocking=True).split([array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


def num_multiprocessors(device: torch.device) -> int:
    """Return how many there are; 1 in interpreter mode: nothing runs side by side there."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
