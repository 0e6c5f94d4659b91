"""The spec: naive loops in fp32, one line a thought. Every other backend is tested against this file."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.layout import LayerKV
from kernels.plan import PagedBatch
from kernels.quant import dequantize, hadamard, quantize


@dataclass(frozen=True, slots=True, eq=False)
class ReferencePlan:
    """Prepares nothing but the flags."""

    batch: PagedBatch
    bad: torch.Tensor  # [num_tokens] bool

    @classmethod
    def build(cls, batch: PagedBatch, layer: LayerKV) -> ReferencePlan:
        """Take the batch as it is."""
        return cls(batch, torch.zeros(len(batch.slot_mapping), dtype=torch.bool, device=layer.key.device))

    def store_kv(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        layer: LayerKV,
    ) -> torch.Tensor:
        """Rotate, then write row t to slot_mapping[t] in every KV head."""
        rotated_query, rotated_key = _rope(query, rotary), _rope(key, rotary)
        if layer.format.rotated:
            matrix = hadamard(query.shape[-1], device=query.device)
            rotated_query, rotated_key = rotated_query @ matrix, rotated_key @ matrix
        for row in range(len(query)):
            new_key, new_value = rotated_key[row], value[row].float()
            if not (_fits(new_key, layer) and _fits(new_value, layer)):
                self.bad[row] = True
                new_key, new_value = torch.zeros_like(new_key), torch.zeros_like(new_value)
            self._write(row, new_key, new_value, layer)
        return rotated_query.to(query.dtype).contiguous()

    def paged_attention(self, query: torch.Tensor, layer: LayerKV, scale: float) -> torch.Tensor:
        """Attend from each row to the positions up to its own: softmax(scale · q · Kᵀ) · V."""
        _, num_heads, _ = query.shape
        group = num_heads // layer.key.shape[1]
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        for row in range(len(query)):
            request, position = self._place(row)
            keys = torch.stack([self._key(request, index, position, layer) for index in range(position + 1)])
            values = torch.stack([self._value(request, index, layer) for index in range(position + 1)])
            for head in range(num_heads):
                scores = keys[:, head // group] @ query[row, head].float() * scale
                output[row, head] = (scores.softmax(dim=0) @ values[:, head // group]).to(query.dtype)
        return output

    def bad_rows(self) -> torch.Tensor:
        """See `kernels.ops.bad_rows`."""
        return self.bad

    def _write(self, row: int, key: torch.Tensor, value: torch.Tensor, layer: LayerKV) -> None:
        """Write one row's key and value, each [num_kv_heads, head_dim] fp32."""
        block, offset = divmod(int(self.batch.slot_mapping[row]), layer.block_size)
        if not layer.format.quantized:
            layer.key[block, :, offset] = key.to(layer.key.dtype)
            layer.value[block, :, offset] = value.to(layer.value.dtype)
            return
        assert layer.key_scale is not None
        assert layer.value_scale is not None
        num_groups = layer.value_scale.shape[-1]
        layer.value[block, :, offset], layer.value_scale[block, :, offset] = quantize(value, num_groups)
        if layer.key_open is None:
            layer.key[block, :, offset], layer.key_scale[block, :, offset] = quantize(key, num_groups)
            return
        request, position = self._place(row)
        opened = layer.key_open[self._open_slot(request, position, layer)]
        opened[:, offset] = key.to(opened.dtype)
        if offset == layer.block_size - 1:  # the block is full: one scale a channel, over its tokens
            codes, scales = quantize(opened.transpose(-1, -2))
            layer.key[block], layer.key_scale[block] = codes.transpose(-1, -2), scales.squeeze(-1)

    def _key(self, request: int, index: int, position: int, layer: LayerKV) -> torch.Tensor:
        """[num_kv_heads, head_dim] fp32: what a query at `position` sees of the key at `index`."""
        block, offset = self._slot(request, index, layer)
        if layer.key_scale is None:
            return layer.key[block, :, offset].float()
        if not layer.format.per_channel_keys:
            return dequantize(layer.key[block, :, offset], layer.key_scale[block, :, offset])
        if index // layer.block_size == position // layer.block_size:  # its own block, not yet quantized for it
            assert layer.key_open is not None
            return layer.key_open[self._open_slot(request, index, layer), :, offset].float()
        return layer.key[block, :, offset].float() * layer.key_scale[block].float()

    def _value(self, request: int, index: int, layer: LayerKV) -> torch.Tensor:
        """[num_kv_heads, head_dim] fp32: the value at a position."""
        block, offset = self._slot(request, index, layer)
        if layer.value_scale is None:
            return layer.value[block, :, offset].float()
        return dequantize(layer.value[block, :, offset], layer.value_scale[block, :, offset])

    def _place(self, row: int) -> tuple[int, int]:
        """Request and position of a row."""
        batch = self.batch
        request = int((batch.query_start_loc <= row).sum()) - 1
        return request, int(batch.seq_lens[request] - batch.query_start_loc[request + 1]) + row

    def _slot(self, request: int, index: int, layer: LayerKV) -> tuple[int, int]:
        """Block and offset of a position."""
        return int(self.batch.block_tables[request, index // layer.block_size]), index % layer.block_size

    def _open_slot(self, request: int, index: int, layer: LayerKV) -> int:
        assert self.batch.open_slots is not None
        return int(self.batch.open_slots[request, index // layer.block_size])


def _rope(x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotate heads [num_tokens, num_heads, head_dim] in fp32; a pair is (i, i + head_dim / 2).

    Source: RoFormer, Su et al. 2021, in the half-split order of GPT-NeoX.
    """
    cos, sin = (table.unsqueeze(1) for table in rotary)
    x = x.float()
    return x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin


def _fits(x: torch.Tensor, layer: LayerKV) -> bool:
    """False for NaN, infinities and what the cache cannot hold."""
    return bool((x.abs() <= layer.limit).all())
