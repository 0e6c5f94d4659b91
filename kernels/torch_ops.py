"""Vectorized torch: gather the tokens of a request, dequantize them, then scaled dot product attention.

A cache layer is seen as rows of one token and head, `(block * num_kv_heads + head) * block_size + offset`, so that one
`index_select` gathers [num_kv_heads, num_tokens, head_dim] without a transposed copy; scales lie in the same order.
Slots that hold nothing are never read: padding points at the request's last token, which this step wrote, and is
masked. (A mask alone would not do: 0 · NaN is NaN.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from kernels.layout import LayerKV
from kernels.plan import PagedBatch
from kernels.quant import dequantize, hadamard, quantize
from kernels.torch_rows import Chunk, DecodeGroup, Reads, RowMap, Writes


@dataclass(frozen=True, slots=True, eq=False)
class TorchPlan:
    """Row indices and masks of one step, on the device."""

    writes: Writes
    groups: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]
    bad: torch.Tensor  # [num_tokens] bool

    @classmethod
    def build(cls, batch: PagedBatch, layer: LayerKV) -> TorchPlan:
        """Compute everything that does not depend on the layer."""
        rows = RowMap(batch, layer)
        bad = torch.zeros(len(batch.slot_mapping), dtype=torch.bool, device=layer.key.device)
        return cls(rows.writes(), tuple(rows.decode_groups()), tuple(rows.chunks()), bad)

    def store_kv(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        layer: LayerKV,
    ) -> torch.Tensor:
        """See `kernels.ops.store_kv`."""
        num_heads, head_dim = query.shape[1:]
        heads = _apply_rotary(torch.cat((query, key), dim=1), rotary)
        if layer.format.rotated:
            heads = heads @ hadamard(head_dim, device=heads.device)
        new_key, new_value = heads[:, num_heads:], value.float()
        fits = ((new_key.abs() <= layer.limit) & (new_value.abs() <= layer.limit)).flatten(1).all(dim=1)
        self.bad.logical_or_(~fits)
        new_key, new_value = (torch.where(fits[:, None, None], new, 0.0) for new in (new_key, new_value))
        self._write(new_value, layer.value, layer.value_scale)
        if layer.key_open is None:
            self._write(new_key, layer.key, layer.key_scale)
        else:
            self._write_open(new_key, layer)
        return heads[:, :num_heads].to(query.dtype).contiguous()

    def paged_attention(self, query: torch.Tensor, layer: LayerKV, scale: float) -> torch.Tensor:
        """See `kernels.ops.paged_attention`."""
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        for group in self.groups:
            output.index_copy_(0, group.tokens, _decode(query, group, layer, scale).to(query.dtype))
        for chunk in self.chunks:
            output[chunk.start : chunk.end] = _prefill(query, chunk, layer, scale)
        return output

    def bad_rows(self) -> torch.Tensor:
        """See `kernels.ops.bad_rows`."""
        return self.bad

    def _write(self, new: torch.Tensor, cache: torch.Tensor, scale: torch.Tensor | None) -> None:
        """Write [num_tokens, num_kv_heads, head_dim] fp32 to the step's slots."""
        head_dim = cache.shape[-1]
        if scale is not None:
            new, new_scale = quantize(new, scale.shape[-1])
            scale.view(-1, scale.shape[-1]).index_copy_(0, self.writes.cache_rows, new_scale.flatten(0, 1))
        cache.view(-1, head_dim).index_copy_(0, self.writes.cache_rows, new.to(cache.dtype).reshape(-1, head_dim))

    def _write_open(self, new: torch.Tensor, layer: LayerKV) -> None:
        """Write keys to their open blocks, and quantize the blocks that are full now, a scale a channel."""
        writes, opened = self.writes, layer.key_open
        assert opened is not None
        assert layer.key_scale is not None
        assert writes.open_rows is not None
        head_dim = opened.shape[-1]
        opened.view(-1, head_dim).index_copy_(0, writes.open_rows, new.to(opened.dtype).reshape(-1, head_dim))
        codes, scales = quantize(opened[writes.filled_slots].transpose(-1, -2))
        layer.key[writes.filled_blocks] = codes.transpose(-1, -2)
        layer.key_scale[writes.filled_blocks] = scales.squeeze(-1)


def _apply_rotary(x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotate heads x [num_tokens, num_heads, head_dim], in fp32; a pair is (i, i + head_dim / 2).

    Source: RoFormer, Su et al. 2021, in the half-split order of GPT-NeoX.
    """
    cos, sin = (table.unsqueeze(1) for table in rotary)
    x = x.float()
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


def _gather(layer: LayerKV, reads: Reads) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [num_rows, head_dim]: in fp32 if they were quantized, else as they are."""
    head_dim = layer.key.shape[-1]
    keys, values = (cache.view(-1, head_dim).index_select(0, reads.cache_rows) for cache in (layer.key, layer.value))
    if layer.key_scale is None or layer.value_scale is None:
        return keys, values
    num_groups = layer.value_scale.shape[-1]
    values = dequantize(values, layer.value_scale.view(-1, num_groups).index_select(0, reads.cache_rows))
    if layer.key_open is None:
        return dequantize(keys, layer.key_scale.view(-1, num_groups).index_select(0, reads.cache_rows)), values
    assert reads.own is not None
    assert reads.open_rows is not None
    block_heads = reads.cache_rows // layer.block_size
    keys = keys.float() * layer.key_scale.view(-1, head_dim).index_select(0, block_heads).float()
    keys.index_copy_(0, reads.own, layer.key_open.view(-1, head_dim).index_select(0, reads.open_rows).float())
    return keys, values


def _decode(query: torch.Tensor, group: DecodeGroup, layer: LayerKV, scale: float) -> torch.Tensor:
    """Let the query heads of one KV head be the rows of one product, so that its keys are read once."""
    _, num_heads, head_dim = query.shape
    num_kv_heads = layer.key.shape[1]
    num_requests = len(group.tokens)
    keys, values = (tensor.view(num_requests, num_kv_heads, -1, head_dim) for tensor in _gather(layer, group.reads))
    rows = query.index_select(0, group.tokens).to(keys.dtype)
    rows = rows.view(num_requests, num_kv_heads, num_heads // num_kv_heads, head_dim)
    attended = functional.scaled_dot_product_attention(rows, keys, values, attn_mask=group.mask, scale=scale)
    return attended.reshape(num_requests, num_heads, head_dim)


def _prefill(query: torch.Tensor, chunk: Chunk, layer: LayerKV, scale: float) -> torch.Tensor:
    head_dim = query.shape[-1]
    keys, values = (tensor.view(1, layer.key.shape[1], -1, head_dim) for tensor in _gather(layer, chunk.reads))
    rows = query[chunk.start : chunk.end].transpose(0, 1).to(keys.dtype)
    attended = functional.scaled_dot_product_attention(
        rows[None], keys, values, attn_mask=chunk.mask, is_causal=chunk.mask is None, scale=scale, enable_gqa=True
    )
    return attended[0].transpose(0, 1)
