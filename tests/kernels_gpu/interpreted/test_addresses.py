"""Addresses past 2^31: the caches lie at the end of memory that is reserved but never touched."""

from __future__ import annotations

import torch

from kernels import ops
from kernels.gpu.plan import TritonPlan
from kernels.layout import LayerKV
from kernels.plan import PagedBatch
from tests.kernels.cases import Shape, clone, make_batch, make_inputs, make_layer

SHAPE = Shape(2, 1, 64, 8, num_blocks=8)
BLOCKS_BEFORE = 2**31 // (SHAPE.block_size * SHAPE.head_dim)


def far_away(layer: LayerKV) -> LayerKV:
    """The same blocks behind 2^31 bytes of codes."""

    def far(tensor: torch.Tensor) -> torch.Tensor:
        moved = torch.empty((BLOCKS_BEFORE + len(tensor), *tensor.shape[1:]), dtype=tensor.dtype)
        moved[BLOCKS_BEFORE:] = tensor
        return moved

    return LayerKV(layer.format, *(far(tensor) for tensor in layer.tensors))


def test_blocks_beyond_two_to_the_31st_bytes_are_written_and_read():
    torch.manual_seed(10)
    batch = make_batch([(20, 1), (3, 4)], SHAPE.block_size, SHAPE.num_blocks)
    layer = make_layer("int8/per_token", SHAPE, torch.float32)
    far, inputs, expected_layer = far_away(layer), make_inputs(batch, SHAPE, torch.float32), clone(layer)
    far_batch = PagedBatch(
        batch.slot_mapping + BLOCKS_BEFORE * SHAPE.block_size,
        batch.query_start_loc,
        batch.seq_lens,
        batch.block_tables + BLOCKS_BEFORE,
    )
    outputs = []
    spec = ops.plan_step(batch, expected_layer, backend="reference")
    for plan, cache in ((TritonPlan.build(far_batch, far), far), (spec, expected_layer)):
        query = ops.store_kv(inputs.query, inputs.key, inputs.value, inputs.rotary, cache, plan)
        outputs.append(ops.paged_attention(query, cache, plan, scale=0.125))
    for got, expected in zip(far.tensors, expected_layer.tensors, strict=True):
        assert torch.equal(got[BLOCKS_BEFORE:], expected)
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-5)
