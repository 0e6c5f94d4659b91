"""The spec: naive loops in fp32, one line a thought. Every other backend is tested against this file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.plan import PagedBatch


@dataclass(frozen=True, slots=True)
class ReferencePlan:
    """Prepares nothing."""

    batch: PagedBatch

    def store_kv(
        self, key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor
    ) -> None:
        """Write row t to slot_mapping[t], in every KV head."""
        block_size = key_cache.shape[2]
        for row, slot in enumerate(self.batch.slot_mapping.tolist()):
            block, offset = divmod(slot, block_size)
            key_cache[block, :, offset] = key[row]
            value_cache[block, :, offset] = value[row]

    def paged_attention(
        self, query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attend from each row to the positions up to its own: softmax(scale · q · Kᵀ) · V."""
        batch = self.batch
        _, num_heads, _ = query.shape
        group = num_heads // key_cache.shape[1]
        output = torch.empty_like(query)
        for request, seq_len in enumerate(batch.seq_lens.tolist()):
            first, last = batch.query_start_loc[request : request + 2].tolist()
            for row in range(first, last):
                num_visible = seq_len - last + row + 1
                keys, values = (
                    _tokens(cache, batch.block_tables[request].tolist(), num_visible)
                    for cache in (key_cache, value_cache)
                )
                for head in range(num_heads):
                    scores = keys[:, head // group] @ query[row, head].float() * scale
                    output[row, head] = (scores.softmax(dim=0) @ values[:, head // group]).to(query.dtype)
        return output


def copy_blocks(key_cache: torch.Tensor, value_cache: torch.Tensor, copies: Sequence[tuple[int, int, int]]) -> None:
    """Copy the first tokens of block src to block dst in every layer, one (src, dst, num_tokens) after the other."""
    for src, dst, num_tokens in copies:
        for cache in (key_cache, value_cache):
            for layer in cache:
                for offset in range(num_tokens):
                    layer[dst, :, offset] = layer[src, :, offset]


def _tokens(cache: torch.Tensor, block_table: list[int], num_tokens: int) -> torch.Tensor:
    """[num_tokens, num_kv_heads, head_dim] in fp32: the first tokens of a block table."""
    block_size = cache.shape[2]
    slots = (divmod(position, block_size) for position in range(num_tokens))
    return torch.stack([cache[block_table[index], :, offset] for index, offset in slots]).float()
