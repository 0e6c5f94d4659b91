"""The Triton kernels on random data against dense attention in fp64 over the dequantized cache, over poisoned blocks.

per_channel is checked against the readable reference instead, at a small shape, and copies against those of the CPU.

The error of a row of this table is |output - exact| / |exact| over all rows of a step, so it holds the rounding of 16
bits and of the products, and not that of the codes, which are compared with `kernels.quant` bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from benchmarks.gpu_rows import Row, at_most
from kernels import copy_blocks as on_cpu
from kernels import ops
from kernels.layout import LayerKV
from kernels.plan import PagedBatch, StepPlan
from kernels.quant import dequantize, hadamard, parse_kv_format, quantize
from tests.kernels.cases import Inputs, Shape, make_batch, make_inputs, make_layer, poison, run_step

FORMATS = ("auto", "int8/per_token", "int8/hadamard", "int8/per_group_32")
# operands of 8 bits (bf16): 2^-9 a weight, averaged, and 2^-9 of the output's own rounding; the interpreter cuts off
MAX_ERROR = {torch.bfloat16: 1e-2, torch.float16: 5e-3}


@dataclass(frozen=True, slots=True)
class Case:
    """A step: what it is called, and (num_computed, num_new) of its requests."""

    name: str
    lengths: tuple[tuple[int, int], ...]
    shared_blocks: int = 0


def check_kernels(device: torch.device) -> Iterator[Row]:
    """Every format and kernel at one shape, then other head sizes."""
    cases = (
        Case("decode", ((0, 1), (31, 1), (32, 1), (33, 1), (1021, 1), (4099, 1))),
        Case("prefill", ((0, 509), (700, 131), (64, 64))),
        Case("shared prefix", tuple((2048 + 97 * index, 1) for index in range(12)), shared_blocks=64),
    )
    for name in FORMATS:
        yield from _check(name, Shape(32, 8, 128, 32, num_blocks=1200), torch.bfloat16, cases, device)
    yield from _check("int8/hadamard", Shape(9, 3, 64, 16, num_blocks=2400), torch.float16, cases, device)
    yield from _check("int8/per_token", Shape(8, 1, 80, 64, num_blocks=600), torch.bfloat16, cases[:2], device)
    yield from _check("int8/per_token", Shape(16, 8, 256, 32, num_blocks=600), torch.bfloat16, cases[:2], device)
    yield from _check_open_blocks(Shape(16, 4, 128, 32, num_blocks=32), device)
    yield from _check_copies(Shape(8, 4, 128, 32, num_blocks=32), device)


def check_kernels_briefly(device: torch.device) -> Iterator[Row]:
    """The same at sizes that an interpreter can do."""
    cases = (Case("decode", ((0, 1), (33, 1))), Case("prefill", ((5, 9),)))
    for name in FORMATS:
        yield from _check(name, Shape(4, 2, 64, 16, num_blocks=16), torch.float16, cases, device)
    yield from _check_open_blocks(Shape(4, 2, 64, 16, num_blocks=32), device)
    yield from _check_copies(Shape(4, 2, 64, 16, num_blocks=8), device)


def _check(name: str, shape: Shape, dtype: torch.dtype, cases: tuple[Case, ...], device: torch.device) -> Iterator[Row]:
    for case in cases:
        batch = make_batch(
            list(case.lengths), shape.block_size, shape.num_blocks, seed=1, shared_blocks=case.shared_blocks
        )
        layer = _poisoned_layer(name, shape, dtype, device)
        _fill(layer, batch)
        plan = ops.plan_step(batch, layer, backend="triton")
        query, wrong_codes = _store(layer, batch, plan, shape, dtype)
        output = ops.paged_attention(query, layer, plan, scale=shape.head_dim**-0.5)
        exact = _dense_attention(query, layer, batch, shape.head_dim**-0.5)
        error = float((output.double() - exact).norm() / exact.norm())
        what = f"{name} {dtype} {shape} {case.name}".replace("torch.", "")
        # a rotation sums in another order, so that codes may fall to the other side of a half, rarely
        yield at_most(f"{what}: wrong codes, share", wrong_codes, 1e-3 if layer.format.rotated else 0)
        yield at_most(f"{what}: error", error, MAX_ERROR[dtype])


def _check_open_blocks(shape: Shape, device: torch.device) -> Iterator[Row]:
    """per_channel: blocks that are filled, go on and begin in one step, over poisoned blocks."""
    size = shape.block_size
    batch = make_batch([(size + 1, 1), (size - 2, 1), (size - 1, 1), (size - 3, size + 5)], size, shape.num_blocks)
    layer = make_layer("int8/per_channel", shape, torch.float16)
    poison(layer, batch)
    inputs = make_inputs(batch, shape, torch.float16)
    moved = _on(layer, device)
    cos, sin = (table.to(device) for table in inputs.rotary)
    there = Inputs(*(rows.to(device) for rows in (inputs.query, inputs.key, inputs.value)), (cos, sin))
    _, exact, _ = run_step(inputs, layer, batch, "reference")
    _, output, _ = run_step(there, moved, batch, "triton")
    wrong = float((moved.key.cpu() != layer.key).double().mean())
    error = float((output.cpu().double() - exact.double()).norm() / exact.double().norm())
    yield at_most(f"int8/per_channel float16 {shape}: wrong codes, share", wrong, 1e-3)
    yield at_most(f"int8/per_channel float16 {shape}: error", error, MAX_ERROR[torch.float16])


def _check_copies(shape: Shape, device: torch.device) -> Iterator[Row]:
    """A chain of copies in layers of several formats at once."""
    from kernels.gpu import copy_blocks as on_gpu  # --dry-run sets TRITON_INTERPRET before Triton is imported

    last = shape.num_blocks - 1
    copies = [(0, 1, 5), (1, 2, shape.block_size), (3, 3, 8), (3, 0, 0), (2, last, 1)]
    layers = [make_layer(name, shape, torch.bfloat16) for name in (*FORMATS, "int8/per_channel")]
    tensors = [tensor for layer in layers for tensor in layer.tensors]
    moved = [tensor.to(device, copy=True) for tensor in tensors]
    on_gpu.copy_blocks(moved, copies)
    on_cpu.copy_blocks(tensors, copies)
    wrong = sum(not torch.equal(one.cpu(), other) for one, other in zip(moved, tensors, strict=True))
    yield at_most("copy_blocks: tensors that differ", wrong, 0)


def _on(layer: LayerKV, device: torch.device) -> LayerKV:
    names = ("key", "value", "key_scale", "value_scale", "key_open")
    return replace(layer, **{name: getattr(layer, name).to(device, copy=True) for name in names})


def _poisoned_layer(name: str, shape: Shape, dtype: torch.dtype, device: torch.device) -> LayerKV:
    """NaN, or the largest codes and scales of NaN, everywhere."""
    kv_format = parse_kv_format(name)
    size = (shape.num_blocks, shape.num_kv_heads, shape.block_size, shape.head_dim)
    if not kv_format.quantized:
        return LayerKV(kv_format, *(torch.full(size, torch.nan, dtype=dtype, device=device) for _ in range(2)))
    codes = [torch.full(size, -127, dtype=torch.int8, device=device) for _ in range(2)]
    groups = (*size[:3], kv_format.num_groups(shape.head_dim))
    scales = [torch.full(groups, torch.nan, dtype=torch.float16, device=device) for _ in range(2)]
    return LayerKV(kv_format, *codes, *scales)


def _fill(layer: LayerKV, batch: PagedBatch) -> None:
    """Random tokens in the slots that the requests' earlier tokens have."""
    slots = []
    for table, num_computed in zip(batch.block_tables, batch.seq_lens - batch.query_lens, strict=True):
        positions = torch.arange(int(num_computed))
        slots.append(
            torch.from_numpy(table)[positions // layer.block_size] * layer.block_size + positions % layer.block_size
        )
    block, offset = (part.to(layer.key.device) for part in _divmod(torch.cat(slots), layer.block_size))
    for cache, scales in ((layer.key, layer.key_scale), (layer.value, layer.value_scale)):
        rows = torch.randn(len(block), cache.shape[1], cache.shape[3], device=cache.device)
        if scales is None:
            cache[block, :, offset] = rows.to(cache.dtype)
        else:
            cache[block, :, offset], scales[block, :, offset] = quantize(rows, scales.shape[-1])


def _divmod(slots: torch.Tensor, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return slots // block_size, slots % block_size


def _store(
    layer: LayerKV, batch: PagedBatch, plan: StepPlan, shape: Shape, dtype: torch.dtype
) -> tuple[torch.Tensor, float]:
    """Store new rows; returns the rotated query and the share of values of the cache that are not as they should be."""
    device, num_tokens = layer.key.device, len(batch.slot_mapping)
    sizes = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
    query, key, value = torch.randn(num_tokens, sum(sizes), shape.head_dim, device=device).to(dtype).split(sizes, dim=1)
    angles = torch.rand(num_tokens, shape.head_dim // 2, device=device) * 6.28
    cos, sin = torch.cat((angles.cos(), angles.cos()), 1), torch.cat((-angles.sin(), angles.sin()), 1)
    rotated_query = ops.store_kv(query, key, value, (cos, sin), layer, plan)

    new_key = key.float() * cos[:, None] + key.float().roll(shape.head_dim // 2, -1) * sin[:, None]
    if layer.format.rotated:
        new_key = (new_key.double() @ hadamard(shape.head_dim, device=device).double()).float()
    block, offset = (part.to(device) for part in _divmod(torch.from_numpy(batch.slot_mapping), layer.block_size))
    wrong = 0.0
    for new, cache in ((new_key, layer.key), (value.float(), layer.value)):
        wanted = quantize(new, layer.format.num_groups(shape.head_dim))[0] if layer.format.quantized else new.to(dtype)
        got = cache[block, :, offset]
        # no value of an unquantized cache may be off by more than the last bit, which interpreter mode cuts off
        off = got != wanted if layer.format.quantized else (got - wanted).abs() > wanted.abs() * 2**-7
        wrong += float(off.double().mean()) / 2
    return rotated_query, wrong


def _dense_attention(query: torch.Tensor, layer: LayerKV, batch: PagedBatch, scale: float) -> torch.Tensor:
    """softmax(scale · q · Kᵀ) · V in fp64, request by request."""
    exact = torch.empty(query.shape, dtype=torch.float64, device=query.device)
    group = query.shape[1] // layer.key.shape[1]
    for request, (table, seq_len) in enumerate(zip(batch.block_tables, batch.seq_lens.tolist(), strict=True)):
        first, last = batch.query_start_loc[request : request + 2].tolist()
        blocks = torch.from_numpy(table[: -(-seq_len // layer.block_size)]).to(query.device)
        keys, values = (
            _exact_rows(cache, scales, blocks, seq_len).repeat_interleave(group, 0)
            for cache, scales in ((layer.key, layer.key_scale), (layer.value, layer.value_scale))
        )
        scores = query[first:last].double().transpose(0, 1) @ keys.transpose(1, 2) * scale
        positions = torch.arange(seq_len - (last - first), seq_len, device=query.device)
        hidden = torch.arange(seq_len, device=query.device) > positions[:, None]
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        exact[first:last] = (weights @ values).transpose(0, 1)
    return exact


def _exact_rows(
    cache: torch.Tensor, scales: torch.Tensor | None, blocks: torch.Tensor, num_tokens: int
) -> torch.Tensor:
    """[num_kv_heads, num_tokens, head_dim] fp64."""
    rows = cache[blocks].float() if scales is None else dequantize(cache[blocks], scales[blocks])
    return rows.transpose(0, 1).flatten(1, 2)[:, :num_tokens].double()
