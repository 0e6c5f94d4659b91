"""Codes, scales, flags and rotated queries against the reference, bit for bit where nothing is summed."""

from __future__ import annotations

import pytest
import torch

from kernels import ops
from tests.kernels.cases import Inputs, Shape, clone, make_batch, make_inputs, make_layer

SHAPES = [
    Shape(9, 3, 64, 32),
    Shape(4, 4, 16, 8),
    Shape(8, 1, 80, 16),
    Shape(5, 5, 96, 64, num_blocks=8),
    Shape(2, 1, 256, 8),
]
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float16, torch.float32]


def store(inputs: Inputs, layer, batch, backend: str):
    plan = ops.plan_step(batch, layer, backend=backend)
    query = ops.store_kv(inputs.query, inputs.key, inputs.value, inputs.rotary, layer, plan)
    return query, ops.bad_rows(plan)


def assert_same_bits(got, expected) -> None:
    for one, other in zip(got.tensors, expected.tensors, strict=True):
        assert torch.equal(one, other)


BIT_CASES = [
    (name, shape, dtype)
    for name in ("int8/per_token", "int8/per_group_32")
    for shape, dtype in zip(SHAPES, DTYPES, strict=True)
    if name == "int8/per_token" or shape.head_dim <= 32 or shape.head_dim % 32 == 0  # the group divides the head
]


@pytest.mark.parametrize(("name", "shape", "dtype"), BIT_CASES, ids=str)
def test_store_kv_writes_the_bits_of_the_reference(name, shape, dtype):
    torch.manual_seed(3)
    batch = make_batch([(5, 3), (0, 2)], shape.block_size, shape.num_blocks)
    layer = make_layer(name, shape, dtype)
    expected, inputs = clone(layer), make_inputs(batch, shape, dtype)
    query, _ = store(inputs, layer, batch, "triton")
    expected_query, _ = store(inputs, expected, batch, "reference")
    assert_same_bits(layer, expected)
    # the interpreter cuts bf16 off instead of rounding it
    torch.testing.assert_close(query, expected_query, rtol=2**-7 if dtype == torch.bfloat16 else 0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_store_kv_of_an_unquantized_cache_writes_the_bits_of_the_reference(dtype):
    torch.manual_seed(4)
    shape = SHAPES[0]
    batch = make_batch([(33, 1), (0, 9), (15, 2)], shape.block_size, shape.num_blocks)
    layer = make_layer("auto", shape, dtype)
    expected, inputs = clone(layer), make_inputs(batch, shape, dtype)
    store(inputs, layer, batch, "triton")
    store(inputs, expected, batch, "reference")
    assert_same_bits(layer, expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rotated_codes_differ_by_one_at_most_and_rarely(shape):
    torch.manual_seed(5)
    batch = make_batch([(0, 9), (7, 3)], shape.block_size, shape.num_blocks)
    layer = make_layer("int8/hadamard", shape, torch.float32)
    expected, inputs = clone(layer), make_inputs(batch, shape, torch.float32)
    query, _ = store(inputs, layer, batch, "triton")
    expected_query, _ = store(inputs, expected, batch, "reference")
    difference = (layer.key.int() - expected.key.int()).abs()
    assert difference.max() <= 1
    assert difference.sum() <= 1e-3 * 12 * shape.num_kv_heads * shape.head_dim  # of the rows written
    assert torch.equal(layer.value, expected.value)
    # log2(head_dim) sums of fp32 in another order, of numbers that stay below 16 times the largest of a unit normal
    torch.testing.assert_close(query, expected_query, rtol=0, atol=8 * 2**-24 * 16)


@pytest.mark.parametrize("block_size", [8, 32])
def test_a_block_is_quantized_by_channel_when_it_is_full_and_not_before(block_size):
    torch.manual_seed(12)
    shape = Shape(4, 2, 80, block_size)
    lengths = [(block_size - 1, 1), (3, 2), (0, 2 * block_size + 1)]
    batch = make_batch(lengths, block_size, shape.num_blocks)
    layer = make_layer("int8/per_channel", shape, torch.float16)
    expected, inputs = clone(layer), make_inputs(batch, shape, torch.float16)
    before = layer.key.clone()
    store(inputs, layer, batch, "triton")
    store(inputs, expected, batch, "reference")
    assert_same_bits(layer, expected)
    assert torch.equal(layer.key_open, expected.key_open)
    assert (layer.key != before).flatten(1).any(1).sum() == 3


@pytest.mark.filterwarnings("ignore:invalid value")  # numpy, of inf - inf in the rotation
@pytest.mark.parametrize("name", ["auto", "int8/per_token", "int8/per_group_32", "int8/hadamard", "int8/per_channel"])
def test_rows_that_cannot_be_stored_are_zeros_and_flagged(name):
    torch.manual_seed(6)
    shape = Shape(4, 2, 64, 8)
    batch = make_batch([(0, 9)], shape.block_size, shape.num_blocks)
    layer = make_layer(name, shape, torch.float32)
    expected, inputs = clone(layer), make_inputs(batch, shape, torch.float32)
    inputs.key[1, 0, 3], inputs.value[3, 1, 0], inputs.key[4, 1, 63] = torch.nan, torch.inf, -torch.inf
    inputs.value[6, 0, 1] = 1e30 if name != "auto" else 0.5
    _, bad = store(inputs, layer, batch, "triton")
    _, expected_bad = store(inputs, expected, batch, "reference")
    assert bad.tolist() == expected_bad.tolist()
    assert bad.sum() == (3 if name == "auto" else 4)
    assert_same_bits(layer, expected)


def test_values_at_the_edges_get_the_codes_of_the_rule():
    shape = Shape(1, 1, 32, 8)
    rows = torch.zeros(10, 1, 32)
    rows[1] = 3.5  # constant
    rows[2, 0, 0] = 1e-40  # a subnormal alone
    rows[3, 0, :2] = torch.tensor([1e-6, -4e-7])  # scales among the subnormals of fp16
    rows[4, 0, 5] = 127 * 60000.0  # an outlier
    rows[5, 0] = torch.arange(32) * 0.5 - 8  # codes that fall halfway
    rows[5, 0, 31] = 127
    rows[6, 0] = torch.randn(32) * 1e-3
    rows[7, 0, 3] = 2.0**-24 * 127 * 1.49  # rounds down to the smallest scale: clamped
    rows[8, 0] = -1.0
    rows[9, 0] = (torch.arange(32) * 2 - 30.5) * 2021 * 2**-18  # halfway; times the rounded reciprocal it is not
    rows[9, 0, 31] = 127 * 2021 * 2**-18
    batch = make_batch([(0, 10)], shape.block_size)
    layer = make_layer("int8/per_token", shape, torch.float32)
    expected = clone(layer)
    inputs = make_inputs(batch, shape, torch.float32, rotate=False)
    inputs = Inputs(inputs.query, rows, rows.clone(), inputs.rotary)
    store(inputs, layer, batch, "triton")
    store(inputs, expected, batch, "reference")
    assert_same_bits(layer, expected)
