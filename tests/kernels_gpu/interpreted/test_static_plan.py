"""A static plan that is filled again and again gives what a plan of each step gives, in the same tensors."""

from __future__ import annotations

import pytest
import torch

from kernels import ops
from tests.kernels.cases import Shape, clone, make_batch, make_inputs, make_layer, poison

SHAPE = Shape(4, 2, 64, 32, num_blocks=80)
STEPS = ([(600, 1), (3, 1), (255, 1)], [(0, 1), (511, 1), (64, 1)], [(256, 1), (31, 1), (32, 1)])
MAX_BLOCKS = 25  # 800 tokens: more than any request has, and more than one split


@pytest.mark.parametrize(("name", "num_splits"), [("auto", 1), ("auto", 2), ("int8/hadamard", 2)])
def test_refilled_plan_agrees_with_the_reference_and_reads_no_garbage(name, num_splits):
    torch.manual_seed(3)
    empty = make_layer(name, SHAPE, torch.float32)
    static = ops.static_plan(3, MAX_BLOCKS, empty, backend="triton", deterministic=num_splits > 1)
    assert static.plan.rows.max_splits == num_splits
    addresses = [tensor.data_ptr() for tensor in (static.flat, static.plan.slots, static.plan.bad)]
    for seed, lengths in enumerate(STEPS):
        batch = make_batch(lengths, SHAPE.block_size, SHAPE.num_blocks, seed=seed)
        layer = make_layer(name, SHAPE, torch.float32)
        poison(layer, batch)
        inputs = make_inputs(batch, SHAPE, torch.float32)
        bad = seed == 1
        if bad:
            inputs.key[2] = torch.nan
        static.update(batch)
        outputs = []
        expected_layer = clone(layer)
        reference = ops.plan_step(batch, expected_layer, backend="reference")
        for plan, cache in ((static, layer), (reference, expected_layer)):
            query = ops.store_kv(inputs.query, inputs.key, inputs.value, inputs.rotary, cache, plan)
            outputs.append(ops.paged_attention(query, cache, plan, scale=SHAPE.head_dim**-0.5))
        torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-5)
        assert ops.bad_rows(static).tolist() == [False, False, bad]
    assert addresses == [tensor.data_ptr() for tensor in (static.flat, static.plan.slots, static.plan.bad)]


def test_per_channel_is_refused():
    with pytest.raises(ValueError, match="got int8/per_channel, wanted a format without open blocks"):
        ops.static_plan(3, MAX_BLOCKS, make_layer("int8/per_channel", SHAPE, torch.float32))
