"""The public functions: they check their arguments and hand on to a backend.

A step is planned once and its plan used in every layer. Keys are quantized first and then attended to, the step's own
tokens included, so that the bytes read depend neither on chunk borders nor on a prefix hit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch

from kernels.layout import LayerKV
from kernels.plan import Bindable, PagedBatch, ReplannedPlan, StaticPlan, StepPlan

BACKENDS = ("torch", "reference", "numba", "triton")


def plan_step(
    batch: PagedBatch,
    layer: LayerKV,
    *,
    backend: str = "torch",
    deterministic: bool = False,
    cascade: bool = True,
    precise: bool = True,
) -> StepPlan:
    """Prepare one step: everything about it that is the same in all layers.

    Args:
        batch: the rows of the step; every request has at least one.
        layer: any layer of the cache, for its format, shapes, dtype and device.
        backend: `torch`; `numba`, fast on the CPU; `triton`, on the GPU; or `reference`, slow and readable.
        deterministic: a row's bits depend on its own request alone: splits of a fixed length, no cascade.
        cascade: requests that decode behind a common run of leading blocks read it once.
        precise: numba keeps 30 bits of an fp32 query beside int8 codes; else 15, which is more than a 16-bit query has
            and enough where weights are int8.

    Raises:
        ValueError: an unknown backend, arrays that do not fit together, or a slot or block outside the cache.
    """
    _check_batch(batch, layer)
    # imported here, for numba and triton are slow to load and are not everywhere
    if backend == "torch":
        from kernels.torch_ops import TorchPlan

        return TorchPlan.build(batch, layer)
    if backend == "reference":
        from kernels.reference import ReferencePlan

        return ReferencePlan.build(batch, layer)
    if backend == "numba":
        from kernels.cpu.plan import NumbaPlan

        return NumbaPlan.build(batch, layer, deterministic=deterministic, cascade=cascade, precise=precise)
    if backend == "triton":
        from kernels.gpu.plan import TritonPlan

        return TritonPlan.build(batch, layer, deterministic=deterministic, cascade=cascade)
    raise ValueError(f"backend: got {backend!r}, wanted one of {', '.join(BACKENDS)}")


def static_plan(
    num_requests: int, max_blocks: int, layer: LayerKV, *, backend: str = "torch", deterministic: bool = False
) -> StaticPlan:
    """Prepare decode steps of a fixed number of requests, for a graph that is captured once and replayed.

    Args:
        num_requests: rows of every step, one a request.
        max_blocks: most blocks of a request.
        layer: any layer of the cache, not per_channel.
        backend: as for `plan_step`. Only `triton` can be captured: the others plan each step anew, to run the same code.
        deterministic: as for `plan_step`.

    Raises:
        ValueError: per_channel, whose open blocks are another number in every step.
    """
    if layer.format.per_channel_keys:
        raise ValueError(f"static_plan: got {layer.format.name}, wanted a format without open blocks")
    if backend == "triton":
        from kernels.gpu.static_plan import TritonStaticPlan

        return TritonStaticPlan.build(num_requests, max_blocks, layer, deterministic=deterministic)
    return ReplannedPlan(functools.partial(plan_step, layer=layer, backend=backend, deterministic=deterministic))


def store_kv(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rotary: tuple[torch.Tensor, torch.Tensor],
    layer: LayerKV,
    plan: StepPlan,
) -> torch.Tensor:
    """Rotate this step's queries and keys, and write keys and values to their slots in one layer, which it mutates.

    A row whose key or value holds a value that is not finite, or is beyond `layer.limit`, is stored as zeros in all
    its heads and flagged in `bad_rows`.

    Args:
        query: [num_tokens, num_heads, head_dim], before RoPE; may be a strided view, contiguous in the last dimension.
        key: [num_tokens, num_kv_heads, head_dim], like query.
        value: like key; in a rotated format its rotation is part of the weights that made it.
        rotary: (cos, sin), each [num_tokens, head_dim] fp32, half-split order, the sign of rotate_half in sin:
            rotated = x * cos + roll(x, head_dim / 2) * sin, in fp32.
        layer: of the cache.
        plan: of this step.

    Returns:
        The query after RoPE, and after the Hadamard rotation where the format has one; contiguous, of its own dtype.
    """
    _, num_kv_heads, _, head_dim = layer.key.shape
    num_tokens = len(query)
    _check_heads("query", query, num_kv_heads, head_dim)
    for name, tensor in (("key", key), ("value", value)):
        if tensor.shape != (num_tokens, num_kv_heads, head_dim) or tensor.stride(-1) != 1:
            raise ValueError(
                f"{name}: got {list(tensor.shape)}, wanted [{num_tokens}, {num_kv_heads}, {head_dim}], "
                f"contiguous in the last"
            )
    for table in rotary:
        if table.shape != (num_tokens, head_dim) or table.dtype != torch.float32 or not table.is_contiguous():
            raise ValueError(
                f"rotary: got {list(table.shape)} {table.dtype}, wanted [{num_tokens}, {head_dim}] float32, contiguous"
            )
    return plan.store_kv(query, key, value, rotary, layer)


def paged_attention(query: torch.Tensor, layer: LayerKV, plan: StepPlan, *, scale: float) -> torch.Tensor:
    """Attend from each row to the cached tokens of its request up to its own position.

    Args:
        query: [num_tokens, num_heads, head_dim], as `store_kv` returned it; the query heads of one KV head are
            neighbours.
        layer: of the cache, this step's keys and values already stored.
        plan: of this step.
        scale: factor on the scores.

    Returns:
        [num_tokens, num_heads, head_dim] of the query's dtype. Slots outside the requests' tokens, their scales
        included, never change it, whatever they hold.
    """
    _, num_kv_heads, _, head_dim = layer.key.shape
    _check_heads("query", query, num_kv_heads, head_dim)
    return plan.paged_attention(query, layer, scale)


def bind(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rotary: tuple[torch.Tensor, torch.Tensor],
    layer: LayerKV,
    plan: StepPlan,
    *,
    scale: float,
) -> Callable[[LayerKV], torch.Tensor]:
    """Prepare `store_kv` and `paged_attention` for buffers that stay where they are while a step goes through layers.

    Args:
        query: as for `store_kv`; key, value and rotary too.
        key: see query.
        value: see query.
        rotary: see query.
        layer: any layer of this plan.
        plan: of this step.
        scale: as for `paged_attention`.

    Returns:
        What does both in one layer, with what the buffers hold then. Its result is overwritten by the next call.
    """
    if isinstance(plan, Bindable):
        return plan.bind(query, key, value, rotary, layer, scale)

    def store_and_attend(layer: LayerKV) -> torch.Tensor:
        return paged_attention(store_kv(query, key, value, rotary, layer, plan), layer, plan, scale=scale)

    return store_and_attend


def bad_rows(plan: StepPlan) -> torch.Tensor:
    """Return the rows that some `store_kv` of this step flagged so far, [num_tokens] bool, on the cache's device."""
    return plan.bad_rows()


def copy_blocks(
    layers: Sequence[LayerKV],
    copies: Sequence[tuple[int, int, int]],
    open_copies: Sequence[tuple[int, int]] = (),
) -> None:
    """Copy the first `num_tokens` slots of block `src` to block `dst` in every layer, which it mutates.

    Codes and scales; the scales of `per_channel` keys are a block's and are copied whole.

    Args:
        layers: of the cache.
        copies: (src, dst, num_tokens), performed in order: a later one sees what an earlier one wrote.
        open_copies: per_channel only: (src, dst) in `LayerKV.key_open`, whole blocks, in order.

    Raises:
        ValueError: a block, slot or number of tokens that the cache does not have.
    """
    for src, dst, num_tokens in copies:
        num_blocks, _, block_size, _ = layers[0].key.shape
        if not (0 <= src < num_blocks and 0 <= dst < num_blocks and 0 <= num_tokens <= block_size):
            raise ValueError(
                f"copy: got {(src, dst, num_tokens)}, wanted blocks below {num_blocks}, at most {block_size} tokens"
            )
    num_open = min((len(layer.key_open) for layer in layers if layer.key_open is not None), default=0)
    for pair in open_copies:
        if min(pair) < 0 or max(pair) >= num_open:
            raise ValueError(f"open copy: got {pair}, wanted slots below {num_open}")
    if layers[0].key.is_cuda:
        from kernels.gpu.copy_blocks import copy_blocks as copy
    else:
        from kernels.copy_blocks import copy_blocks as copy
    copy([tensor for layer in layers for tensor in layer.tensors], copies)
    if open_copies:
        opened = [layer.key_open for layer in layers if layer.key_open is not None]
        copy(opened, [(src, dst, opened[0].shape[2]) for src, dst in open_copies])


def _check_heads(name: str, tensor: torch.Tensor, num_kv_heads: int, head_dim: int) -> None:
    if tensor.dim() != 3 or tensor.shape[1] % num_kv_heads or tensor.shape[2] != head_dim or tensor.stride(-1) != 1:
        raise ValueError(
            f"{name}: got {list(tensor.shape)}, wanted [num_tokens, a multiple of {num_kv_heads}, {head_dim}], "
            f"contiguous in the last"
        )


def _check_batch(batch: PagedBatch, layer: LayerKV) -> None:
    num_blocks, _, block_size, _ = layer.key.shape
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
    if layer.format.per_channel_keys:
        _check_open_slots(batch, layer)


def _check_open_slots(batch: PagedBatch, layer: LayerKV) -> None:
    """Every block that this step writes to, or a query attends to from inside, must be open."""
    assert layer.key_open is not None
    if batch.open_slots is None or batch.open_slots.shape != batch.block_tables.shape:
        raise ValueError(f"open_slots: wanted like block_tables, for {layer.format.name}")
    first = (batch.seq_lens - batch.query_lens) // layer.block_size
    last = (batch.seq_lens - 1) // layer.block_size
    index = np.arange(batch.open_slots.shape[1])
    written = (index >= first[:, None]) & (index <= last[:, None])
    if _outside(batch.open_slots[written], len(layer.key_open)):
        raise ValueError(f"open_slots: wanted a slot below {len(layer.key_open)} for each block that is written to")


def _outside(values: np.ndarray[tuple[int, ...], np.dtype[np.int64]], limit: int) -> bool:
    return bool(values.min() < 0 or values.max() >= limit)
