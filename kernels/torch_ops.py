"""Vectorized torch: gather the blocks of a request, then scaled dot product attention.

A cache layer is seen as rows of one token and head, `(block * num_kv_heads + head) * block_size + offset`, so that one
`index_select` gathers [num_kv_heads, num_tokens, head_dim] without a transposed copy. Slots that hold nothing are never
read: padding points at the request's first token, which is finite where the request is, and is masked. (A mask alone
would not do: 0 · NaN is NaN.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from kernels.plan import IntArray, PagedBatch

_SMALLEST_BUCKET = 7  # 2^7 tokens: below that, padding is cheaper than one more group of decode rows


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Requests of one new token and of like length, padded to the longest."""

    tokens: torch.Tensor  # [num_requests], rows of the query
    cache_rows: torch.Tensor  # [num_requests * num_kv_heads * padded_len]
    mask: torch.Tensor | None  # [num_requests, 1, 1, padded_len], 0 or -inf; None: nothing is padded


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The new tokens [start, end) of one request, and the prefix before them."""

    start: int
    end: int
    cache_rows: torch.Tensor  # [num_kv_heads * seq_len]
    mask: torch.Tensor | None  # [end - start, seq_len], 0 or -inf; None: no prefix, plainly causal


@dataclass(frozen=True, slots=True)
class TorchPlan:
    """Row indices and masks of one step, on the device."""

    slot_rows: torch.Tensor  # [num_tokens * num_kv_heads]
    groups: tuple[_DecodeGroup, ...]
    chunks: tuple[_Chunk, ...]

    @classmethod
    def build(
        cls, batch: PagedBatch, *, num_kv_heads: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> TorchPlan:
        """Compute everything that does not depend on the layer."""
        heads = np.arange(num_kv_heads)

        def to_rows(slots: IntArray) -> torch.Tensor:
            """[..., n] slots -> [(...) * num_kv_heads * n] rows, heads before tokens."""
            block, offset = np.divmod(slots[..., None, :], block_size)
            rows = (block * num_kv_heads + heads[:, None]) * block_size + offset
            return torch.from_numpy(rows.reshape(-1)).to(device)

        def to_mask(visible: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> torch.Tensor:
            return torch.where(torch.from_numpy(visible).to(device), 0.0, -torch.inf).to(dtype)

        groups = []
        for requests in _buckets(batch):
            lens = batch.seq_lens[requests]
            visible = np.arange(lens.max()) < lens[:, None]
            slots = _slots(batch.block_tables[requests], lens.max(), block_size)
            slots = np.where(visible, slots, slots[:, :1])
            mask = None if visible.all() else to_mask(visible[:, None, None])
            tokens = torch.from_numpy(batch.query_start_loc[requests]).to(device)
            groups.append(_DecodeGroup(tokens, to_rows(slots), mask))
        chunks = []
        for request in np.flatnonzero(batch.query_lens > 1):
            start, end = batch.query_start_loc[request : request + 2].tolist()
            seq_len = int(batch.seq_lens[request])
            slots = _slots(batch.block_tables[request : request + 1], seq_len, block_size)
            positions = np.arange(seq_len - (end - start), seq_len)
            mask = to_mask(np.arange(seq_len) <= positions[:, None]) if positions[0] else None
            chunks.append(_Chunk(start, end, to_rows(slots), mask))
        return cls(to_rows(batch.slot_mapping[:, None]), tuple(groups), tuple(chunks))

    def store_kv(
        self, key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor
    ) -> None:
        """See `kernels.ops.store_kv`."""
        for new, cache in ((key, key_cache), (value, value_cache)):
            head_dim = cache.shape[-1]
            cache.view(-1, head_dim).index_copy_(0, self.slot_rows, new.reshape(-1, head_dim))

    def paged_attention(
        self, query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """See `kernels.ops.paged_attention`."""
        output = torch.empty_like(query)
        for group in self.groups:
            output.index_copy_(0, group.tokens, _decode(query, group, key_cache, value_cache, scale))
        for chunk in self.chunks:
            output[chunk.start : chunk.end] = _prefill(query, chunk, key_cache, value_cache, scale)
        return output


def copy_blocks(key_cache: torch.Tensor, value_cache: torch.Tensor, copies: Sequence[tuple[int, int, int]]) -> None:
    """See `kernels.ops.copy_blocks`; all layers at once, one copy after the other, for they may build a chain."""
    for src, dst, num_tokens in copies:
        for cache in (key_cache, value_cache):
            cache[:, dst, :, :num_tokens] = cache[:, src, :, :num_tokens]


def _decode(
    query: torch.Tensor, group: _DecodeGroup, key_cache: torch.Tensor, value_cache: torch.Tensor, scale: float
) -> torch.Tensor:
    """Let the query heads of one KV head be the rows of one product, so that its keys are read once."""
    _, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[1]
    num_requests = len(group.tokens)
    rows = query.index_select(0, group.tokens).view(num_requests, num_kv_heads, num_heads // num_kv_heads, head_dim)
    keys, values = (
        cache.view(-1, head_dim).index_select(0, group.cache_rows).view(num_requests, num_kv_heads, -1, head_dim)
        for cache in (key_cache, value_cache)
    )
    attended = functional.scaled_dot_product_attention(rows, keys, values, attn_mask=group.mask, scale=scale)
    return attended.reshape(num_requests, num_heads, head_dim)


def _prefill(
    query: torch.Tensor, chunk: _Chunk, key_cache: torch.Tensor, value_cache: torch.Tensor, scale: float
) -> torch.Tensor:
    head_dim = query.shape[-1]
    rows = query[chunk.start : chunk.end].transpose(0, 1)
    keys, values = (
        cache.view(-1, head_dim).index_select(0, chunk.cache_rows).view(1, cache.shape[1], -1, head_dim)
        for cache in (key_cache, value_cache)
    )
    attended = functional.scaled_dot_product_attention(
        rows[None], keys, values, attn_mask=chunk.mask, is_causal=chunk.mask is None, scale=scale, enable_gqa=True
    )
    return attended[0].transpose(0, 1)


def _buckets(batch: PagedBatch) -> Iterator[IntArray]:
    """Group the decoding requests by the power of two above their length, so that padding is at most half."""
    decoding = np.flatnonzero(batch.query_lens == 1)
    exponents = np.ceil(np.log2(batch.seq_lens[decoding])).clip(min=_SMALLEST_BUCKET)
    for exponent in np.unique(exponents):
        yield decoding[exponents == exponent]


def _slots(block_tables: IntArray, num_tokens: int, block_size: int) -> IntArray:
    """[num_requests, num_tokens]: the slot of each position; garbage past the end of a request's blocks."""
    num_blocks = -(-num_tokens // block_size)
    slots = block_tables[:, :num_blocks, None] * block_size + np.arange(block_size)
    return slots.reshape(len(block_tables), -1)[:, :num_tokens]
