"""Attention of the Triton kernels against the reference, over poisoned caches, with splits and shared prefixes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels import ops
from kernels.gpu.paged_decode import choose_split_tokens
from kernels.gpu.plan import TritonPlan, Tuning
from kernels.gpu.shared_prefix_decode import find_shared_runs
from tests.kernels.cases import BATCHES, Shape, clone, make_batch, make_inputs, make_layer, poison

# Outputs below 4. fp32: sums of at most 200 products in another order, and exp2 of a product instead of exp. 16 bits:
# the query's and the output's rounding, which the interpreter does by cutting off, of 2^-7 (bf16) and 2^-10 (fp16).
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4 * 2**-6, torch.float16: 4 * 2**-9}
LENGTHS = {**BATCHES, "mixed": [(33, 1), (0, 9), (15, 2), (100, 1), (58, 19)]}
CASES = [
    ("auto", Shape(9, 3, 64, 32), torch.float32, "mixed"),
    ("auto", Shape(8, 1, 80, 16), torch.bfloat16, "chunk-behind-prefix"),
    ("int8/per_token", Shape(4, 2, 64, 8), torch.float32, "mixed"),
    ("int8/per_token", Shape(16, 1, 128, 64, num_blocks=16), torch.float16, "decode-mixed-lengths"),
    ("int8/per_token", Shape(3, 3, 96, 16), torch.bfloat16, "decode-mixed-lengths"),
    ("int8/hadamard", Shape(9, 3, 64, 32), torch.float32, "mixed"),
    ("int8/hadamard", Shape(5, 1, 80, 16), torch.bfloat16, "decode-alone"),
    ("int8/hadamard", Shape(2, 1, 256, 32), torch.float16, "prompt-of-a-prime"),
    ("int8/per_group_32", Shape(4, 2, 64, 8), torch.float32, "mixed"),
    ("int8/per_group_32", Shape(4, 1, 96, 32), torch.bfloat16, "chunk-behind-prefix"),
    ("int8/per_channel", Shape(4, 2, 64, 8), torch.float32, "mixed"),
    ("int8/per_channel", Shape(3, 1, 80, 32), torch.float16, "chunk-behind-prefix"),
    ("int8/per_channel", Shape(2, 2, 96, 16), torch.float16, "decode-mixed-lengths"),
    ("int8/per_group_64", Shape(2, 2, 128, 16), torch.float16, "decode-mixed-lengths"),
]

WIDE = [
    (name, Shape(2 * group, 2, head_dim, block_size, num_blocks=32), dtype)
    for name in (
        "auto",
        "int8/per_token",
        "int8/hadamard",
        "int8/per_group_32",
        "int8/per_group_64",
        "int8/per_channel",
    )
    for head_dim, group, block_size, dtype in [
        (64, 1, 8, torch.float32),
        (80, 2, 16, torch.bfloat16),
        (96, 3, 32, torch.float32),
        (128, 4, 64, torch.bfloat16),
        (256, 5, 16, torch.float32),
        (64, 7, 64, torch.float16),
        (128, 8, 32, torch.float32),
        (96, 16, 8, torch.float16),
    ]
    if not ("group" in name and head_dim % int(name.rsplit("_", 1)[1]) and head_dim > int(name.rsplit("_", 1)[1]))
]


def both(name, shape, dtype, batch, *, tuning=None, deterministic=False):
    """The output of Triton and of the reference, from one poisoned layer."""
    torch.manual_seed(7)
    layer = make_layer(name, shape, dtype)
    poison(layer, batch)
    inputs, expected_layer = make_inputs(batch, shape, dtype), clone(layer)
    plan = TritonPlan.build(batch, layer, tuning=tuning, deterministic=deterministic)
    outputs = []
    for each, cache in ((plan, layer), (ops.plan_step(batch, expected_layer, backend="reference"), expected_layer)):
        query = ops.store_kv(inputs.query, inputs.key, inputs.value, inputs.rotary, cache, each)
        outputs.append(ops.paged_attention(query, cache, each, scale=shape.head_dim**-0.5))
    return plan, *outputs


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "lengths"), CASES, ids=[f"{name}-{shape}-{b}" for name, shape, _, b in CASES]
)
def test_attention_agrees_with_the_reference_and_reads_no_garbage(name, shape, dtype, lengths):
    batch = make_batch(LENGTHS[lengths], shape.block_size, shape.num_blocks)
    _, got, expected = both(name, shape, dtype, batch)
    assert expected.isfinite().all()
    torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    WIDE,
    ids=[f"{name}-{shape}-{dtype}".replace("torch.", "") for name, shape, dtype in WIDE],
)
def test_attention_agrees_with_the_reference_over_heads_groups_and_blocks(name, shape, dtype):
    size = shape.block_size
    lengths = [(0, 1), (size - 2, 1), (size - 1, 1), (size, 1), (97, 1), (size - 3, 6)]
    _, got, expected = both(name, shape, dtype, make_batch(lengths, size, shape.num_blocks))
    torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("name", ["auto", "int8/per_token", "int8/per_group_32", "int8/per_channel"])
@pytest.mark.parametrize("dtype", [torch.float16], ids=str)
def test_splits_are_merged_to_the_same_output(name, dtype):
    shape = Shape(6, 2, 64, 16)
    batch = make_batch([(63, 1), (64, 1), (199, 1), (0, 1)], 16)
    plan, got, expected = both(name, shape, dtype, batch, tuning=Tuning(split_tokens=64))
    assert plan.rows.max_splits == 4
    torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("name", ["auto", "int8/hadamard", "int8/per_group_32"])
def test_a_shared_prefix_is_read_once_and_merged(name):
    shape = Shape(4, 2, 64, 16)
    batch = make_batch([(80, 1), (64, 1), (99, 1), (100, 7)], 16, shared_blocks=4)
    tuning = Tuning(split_tokens=64, cascade_min_tokens=32, cascade_min_requests=2)
    plan, got, expected = both(name, shape, torch.float32, batch, tuning=tuning)
    assert [run.num_tokens for run in plan.runs] == [64]
    assert plan.rows.first_partials.tolist() == [1, 1, 1]
    torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE[torch.float32])


@pytest.mark.parametrize("name", ["int8/per_token", "auto"])
def test_a_deterministic_row_has_the_same_bits_alone_in_a_chunk_and_among_others(name):
    torch.manual_seed(8)
    shape = Shape(4, 2, 64, 16)
    whole = make_batch([(60, 10), (77, 1)], 16)
    layer = make_layer(name, shape, torch.float16)
    inputs = make_inputs(whole, shape, torch.float16)
    plan = ops.plan_step(whole, layer, backend="triton", deterministic=True)
    query = ops.store_kv(inputs.query, inputs.key, inputs.value, inputs.rotary, layer, plan)
    together = ops.paged_attention(query, layer, plan, scale=0.125)
    alone = type(whole)(
        whole.slot_mapping[9:10], np.array([0, 1]), np.array([70]), whole.block_tables[:1], whole.open_slots[:1]
    )
    single = ops.plan_step(alone, layer, backend="triton", deterministic=True)
    assert plan.rows.split_tokens == single.rows.split_tokens == 512
    assert torch.equal(ops.paged_attention(query[9:10], layer, single, scale=0.125), together[9:10])


# A half step of the split is 1.5e-5 of a row's largest value. Of a normal row it vanishes in the output's fp16, of one
# with 3000 in it, it is 3000 * 1.5e-5 * 8 * |key| / 512 in the scores.
@pytest.mark.parametrize(("outlier", "scale", "bound"), [(0.0, 0.5, 2e-3), (3000.0, 1 / 512, 4e-3)])
def test_a_query_loses_nothing_when_split_in_two(outlier, scale, bound):
    torch.manual_seed(9)
    shape = Shape(8, 1, 64, 16)
    batch = make_batch([(90, 1)], 16)
    layer = make_layer("int8/per_token", shape, torch.float16)
    query = torch.randn(1, 8, 64).half()
    query[0, 1], query[0, 3] = 0, query[0, 3] * 1e-4
    query[0, 2, 5] += outlier
    plan = ops.plan_step(batch, layer, backend="triton")
    spec = ops.plan_step(batch, layer, backend="reference")
    got = ops.paged_attention(query, layer, plan, scale=scale)
    torch.testing.assert_close(got, ops.paged_attention(query, layer, spec, scale=scale), rtol=0, atol=bound)


def test_the_lower_half_of_a_split_query_fits_into_int8():
    """Where it is half a step of the upper one: 128 of 2^-14, beside a largest value of 127 * 256 of them."""
    torch.manual_seed(9)
    shape = Shape(1, 1, 64, 16)
    batch = make_batch([(30, 1)], 16)
    layer = make_layer("int8/per_token", shape, torch.float16)
    layer.key.abs_()  # so that errors of one sign add up
    query = torch.full((1, 1, 64), 2.0**-7, dtype=torch.float16)
    query[..., 0] = 127 / 64
    plan = ops.plan_step(batch, layer, backend="triton")
    spec = ops.plan_step(batch, layer, backend="reference")
    got = ops.paged_attention(query, layer, plan, scale=0.125)
    torch.testing.assert_close(got, ops.paged_attention(query, layer, spec, scale=0.125), rtol=0, atol=2e-3)


def test_find_shared_runs_groups_by_the_first_blocks_and_stops_where_tables_differ():
    batch = make_batch([(40, 1), (23, 1), (40, 3), (8, 1)], 8, shared_blocks=1)
    batch.block_tables[1, :3] = batch.block_tables[0, :3]
    runs = find_shared_runs(batch, 8, min_tokens=8, min_requests=2)
    assert [(run.requests.tolist(), run.num_tokens) for run in runs] == [([0, 1, 3], 8)]
    runs = find_shared_runs(batch, 8, min_tokens=16, min_requests=2)
    assert [(run.requests.tolist(), run.num_tokens) for run in runs] == [([0, 1], 16)]  # the third is its newest's
    assert find_shared_runs(batch, 8, min_tokens=16, min_requests=3) == []


@pytest.mark.parametrize(
    ("lengths", "at_most"), [([32768], 1024), ([2048] * 512, 4096), ([1], 256), ([32768] + [64] * 63, 2048)]
)
def test_choose_split_tokens_fills_the_device_and_not_more(lengths, at_most):
    split_tokens = choose_split_tokens(np.array(lengths), num_kv_heads=8, num_multiprocessors=132)
    assert 256 <= split_tokens <= at_most
    assert split_tokens % 64 == 0
