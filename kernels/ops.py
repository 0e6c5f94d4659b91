"""The public functions: they check their arguments and hand on to a backend.

One layer of the cache is `key_cache`, `value_cache`: [num_blocks, num_kv_heads, block_size, head_dim], contiguous. The
whole cache has the layer as its first dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kernels import reference, torch_ops
from kernels.plan import PagedBatch, StepPlan

BACKENDS = ("torch", "reference")


def plan_step(batch: PagedBatch, key_cache: torch.Tensor, *, backend: str = "torch") -> StepPlan:
    """Prepare one step: everything about it that is the same in all layers.

    Args:
        batch: the rows of the step; every request has at least one.
        key_cache: any layer of the cache, for its shape, dtype and device.
        backend: `torch`, or `reference` for the slow and readable one.

    Raises:
        ValueError: an unknown backend, arrays that do not fit together, or a slot or block outside the cache.
    """
    num_blocks, num_kv_heads, block_size, _ = key_cache.shape
    _check_batch(batch, num_blocks, block_size)
    if backend == "reference":
        return reference.ReferencePlan(batch)
    if backend == "torch":
        return torch_ops.TorchPlan.build(
            batch, num_kv_heads=num_kv_heads, block_size=block_size, dtype=key_cache.dtype, device=key_cache.device
        )
    raise ValueError(f"backend: got {backend!r}, wanted one of {BACKENDS}")


def store_kv(
    key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, plan: StepPlan
) -> None:
    """Write this step's keys and values to their slots in one layer of the cache, which it mutates.

    Args:
        key: [num_tokens, num_kv_heads, head_dim], after RoPE, of the cache's dtype.
        value: like key.
        key_cache: [num_blocks, num_kv_heads, block_size, head_dim].
        value_cache: like key_cache.
        plan: of this step.
    """
    _check_cache(key_cache, value_cache)
    for name, tensor in (("key", key), ("value", value)):
        if tensor.shape[1:] != (key_cache.shape[1], key_cache.shape[3]) or tensor.dtype != key_cache.dtype:
            raise ValueError(
                f"{name}: got {list(tensor.shape)} {tensor.dtype}, wanted [num_tokens, {key_cache.shape[1]}, "
                f"{key_cache.shape[3]}] {key_cache.dtype}"
            )
    plan.store_kv(key, value, key_cache, value_cache)


def paged_attention(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, plan: StepPlan, *, scale: float
) -> torch.Tensor:
    """Attend from each row to the cached tokens of its request up to its own position.

    Args:
        query: [num_tokens, num_heads, head_dim], after RoPE; num_heads is a multiple of num_kv_heads, and the query
            heads of one KV head are neighbours.
        key_cache: [num_blocks, num_kv_heads, block_size, head_dim], this step's keys already stored.
        value_cache: like key_cache.
        plan: of this step.
        scale: factor on the scores.

    Returns:
        [num_tokens, num_heads, head_dim] of the query's dtype. Slots outside the requests' tokens never change it,
        whatever they hold.
    """
    _check_cache(key_cache, value_cache)
    _, num_kv_heads, _, head_dim = key_cache.shape
    if query.dim() != 3 or query.shape[1] % num_kv_heads or query.shape[2] != head_dim:
        raise ValueError(
            f"query: got {list(query.shape)}, wanted [num_tokens, a multiple of {num_kv_heads}, {head_dim}]"
        )
    return plan.paged_attention(query, key_cache, value_cache, scale)


def copy_blocks(key_cache: torch.Tensor, value_cache: torch.Tensor, copies: Sequence[tuple[int, int, int]]) -> None:
    """Copy the first `num_tokens` slots of block `src` to block `dst` in every layer; mutates the cache.

    Args:
        key_cache: [num_layers, num_blocks, num_kv_heads, block_size, head_dim].
        value_cache: like key_cache.
        copies: (src, dst, num_tokens), performed in order: a later one sees what an earlier one wrote.
    """
    _check_cache(key_cache, value_cache)
    num_blocks, block_size = key_cache.shape[1], key_cache.shape[3]
    for src, dst, num_tokens in copies:
        if not (0 <= src < num_blocks and 0 <= dst < num_blocks and 0 <= num_tokens <= block_size):
            raise ValueError(
                f"copy: got {(src, dst, num_tokens)}, wanted blocks below {num_blocks}, at most {block_size} tokens"
            )
    torch_ops.copy_blocks(key_cache, value_cache, copies)


def _check_cache(key_cache: torch.Tensor, value_cache: torch.Tensor) -> None:
    if key_cache.shape != value_cache.shape or not (key_cache.is_contiguous() and value_cache.is_contiguous()):
        raise ValueError(
            f"cache: got {list(key_cache.shape)} and {list(value_cache.shape)}, wanted two alike and contiguous"
        )


def _check_batch(batch: PagedBatch, num_blocks: int, block_size: int) -> None:
    num_requests = len(batch.seq_lens)
    query_lens = batch.query_lens
    if len(query_lens) != num_requests or len(batch.block_tables) != num_requests or num_requests == 0:
        raise ValueError(
            f"batch: got {len(query_lens)} query lengths and {len(batch.block_tables)} block tables for "
            f"{num_requests} requests, wanted as many of each, and at least one"
        )
    if len(batch.slot_mapping) != batch.query_start_loc[-1] or (query_lens < 1).any():
        raise ValueError(f"query_start_loc: got {batch.query_start_loc}, wanted one row or more a request, all mapped")
    if (batch.seq_lens < query_lens).any() or batch.seq_lens.max() > batch.block_tables.shape[1] * block_size:
        raise ValueError(f"seq_lens: got {batch.seq_lens}, wanted at least the new tokens and at most the block tables")
    if _outside(batch.slot_mapping, num_blocks * block_size) or _outside(batch.block_tables, num_blocks):
        raise ValueError(f"slot_mapping, block_tables: wanted slots and blocks of a cache of {num_blocks} blocks")


def _outside(values: np.ndarray[tuple[int, ...], np.dtype[np.int64]], limit: int) -> bool:
    return bool(values.min() < 0 or values.max() >= limit)
