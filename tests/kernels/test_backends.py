"""Torch and numba against the readable reference: what they store, what they attend to, and what they never read."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch

from kernels import ops
from kernels.layout import LayerKV
from kernels.plan import PagedBatch
from tests.kernels.cases import (
    ATTENTION_TOLERANCE,
    BATCHES,
    CODE_RATE,
    Inputs,
    Shape,
    clone,
    make_batch,
    make_inputs,
    make_layer,
    poison,
    run_step,
)

SMALL = Shape(num_heads=9, num_kv_heads=3, head_dim=64, block_size=32)
FORMATS = ("auto", "int8/per_token", "int8/hadamard", "int8/per_group_32")
CASES = [  # backend, format, shape, dtype
    *[("torch", name, SMALL, torch.bfloat16) for name in FORMATS],
    ("torch", "int8/per_token", SMALL, torch.float32),
    ("torch", "int8/per_channel", SMALL, torch.bfloat16),
    ("torch", "int8/per_channel", Shape(4, 4, 16, 8), torch.float32),
    ("torch", "auto", Shape(8, 1, 80, 16), torch.float32),
    *[("numba", name, SMALL, torch.bfloat16) for name in FORMATS],
    ("numba", "auto", SMALL, torch.float32),
    ("numba", "auto", SMALL, torch.float16),
    ("numba", "int8/per_token", SMALL, torch.float32),
    ("numba", "int8/hadamard", Shape(8, 1, 80, 16), torch.bfloat16),
    ("numba", "int8/per_token", Shape(4, 4, 16, 8), torch.float32),
]
WIDE = [
    (backend, name, Shape(2 * group, 2, head_dim, block_size), dtype)
    for backend in ("torch", "numba")
    for name in (*FORMATS, "int8/per_group_64", "int8/per_channel")
    for head_dim, group, block_size, dtype in [
        (64, 1, 8, torch.float32),
        (80, 2, 16, torch.bfloat16),
        (96, 3, 32, torch.float32),
        (128, 4, 64, torch.bfloat16),
        (256, 5, 16, torch.float32),
        (64, 7, 64, torch.bfloat16),
        (128, 8, 32, torch.float32),
        (96, 16, 8, torch.bfloat16),
    ]
    if not (backend == "numba" and name == "int8/per_channel")
    and not ("group" in name and head_dim % int(name.rsplit("_", 1)[1]) and head_dim > int(name.rsplit("_", 1)[1]))
]


def describe(value: object) -> str:
    return str(value).removeprefix("torch.").replace("/", "-")


def check_step(
    backend: str, format_name: str, shape: Shape, dtype: torch.dtype, lengths: list[tuple[int, int]]
) -> None:
    """One step on a poisoned cache: the same codes and scales as the reference, and the same output."""
    torch.manual_seed(1)
    batch = make_batch(lengths, shape.block_size)
    expected_layer = make_layer(format_name, shape, dtype)
    poison(expected_layer, batch)
    layer = clone(expected_layer)
    inputs = make_inputs(batch, shape, dtype)
    query, expected, bad = run_step(inputs, expected_layer, batch, "reference")
    got_query, output, got_bad = run_step(inputs, layer, batch, backend)

    assert not bad.any()
    assert not got_bad.any()
    assert output.isfinite().all()
    assert expected.isfinite().all()
    torch.testing.assert_close(got_query, query, rtol=2**-7, atol=2**-7)
    check_stored(layer, expected_layer, batch)
    plan = ops.plan_step(batch, expected_layer, backend=backend)  # the same bytes for both from here on
    again = ops.paged_attention(query, expected_layer, plan, scale=shape.head_dim**-0.5)
    torch.testing.assert_close(again, expected, rtol=0, atol=ATTENTION_TOLERANCE[dtype])


def check_stored(layer: LayerKV, expected: LayerKV, batch: PagedBatch) -> None:
    for name in ("key", "value", "key_scale", "value_scale", "key_open"):
        got, wanted = getattr(layer, name), getattr(expected, name)
        if got is None:
            continue
        if got.dtype == torch.int8:
            difference = (got.int() - wanted.int()).abs()
            assert difference.max() <= 1
            assert difference.sum() <= CODE_RATE * len(batch.slot_mapping) * got.shape[1] * got.shape[3] + 1
        else:
            ulp = 2**-7 if got.dtype == torch.bfloat16 else 2**-10
            rtol = 1e-6 if got.dtype == torch.float32 else ulp
            torch.testing.assert_close(got, wanted, rtol=rtol, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize(("backend", "format_name", "shape", "dtype"), CASES, ids=describe)
def test_step_agrees_with_the_reference_and_reads_no_garbage(backend, format_name, shape, dtype, lengths):
    check_step(backend, format_name, shape, dtype, lengths)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "format_name", "shape", "dtype"), WIDE, ids=describe)
def test_step_agrees_with_the_reference_over_heads_groups_and_blocks(backend, format_name, shape, dtype):
    size = shape.block_size
    for lengths in (
        [(0, size - 1), (0, size + 1), (size - 1, 1), (size, 1), (2 * size, 1)],
        [(97, 1), (0, 53), (61, 41), (0, 1)],
        [(size, size), (0, 2 * size), (3, 2)],
    ):
        check_step(backend, format_name, shape, dtype, lengths)


ROWS: dict[str, Callable[[torch.Tensor], None]] = {
    "zeros": lambda row: row.zero_(),
    "a-constant": lambda row: row.fill_(-0.3),
    "fp32-subnormals": lambda row: row.mul_(1e-41),
    "below-the-smallest-scale": lambda row: row.mul_(1e-8),
    "subnormal-scales": lambda row: row.mul_(1e-4),
    "one-hot-outlier": lambda row: row[..., 5].fill_(1e4),
    "largest-that-fits": lambda row: row[..., 0].fill_(127 * 65504.0),
    "negative-zero": lambda row: row.copy_(-torch.zeros_like(row)),
    "ties": lambda row: row.copy_(torch.arange(row.numel()).view_as(row) % 255 / 2 - 63.5),
}


@pytest.mark.parametrize("fill", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("format_name", ["int8/per_token", "int8/per_group_32"], ids=describe)
def test_codes_and_scales_are_identical_in_all_backends_for_equal_input(format_name, fill):
    torch.manual_seed(3)
    batch = make_batch([(0, 37), (31, 1)], SMALL.block_size)
    inputs = make_inputs(batch, SMALL, torch.float32, rotate=False)
    fill(inputs.key[:7])
    fill(inputs.value[3:9])
    layers = {backend: make_layer(format_name, SMALL, torch.float32) for backend in ("reference", "torch", "numba")}
    layers["torch"], layers["numba"] = clone(layers["reference"]), clone(layers["reference"])
    for backend, layer in layers.items():
        run_step(inputs, layer, batch, backend)
    for backend in ("torch", "numba"):
        for got, wanted in zip(layers[backend].tensors, layers["reference"].tensors, strict=True):
            assert torch.equal(got, wanted), backend


@pytest.mark.parametrize("backend", ["reference", "torch", "numba"])
@pytest.mark.parametrize("format_name", ["auto", "int8/per_token", "int8/hadamard"], ids=describe)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 3e38], ids=str)
def test_a_row_that_cannot_be_stored_is_flagged_and_stored_as_zeros(backend, format_name, value):
    torch.manual_seed(4)
    batch = make_batch([(0, 5), (9, 1)], SMALL.block_size)
    dtype = torch.bfloat16 if format_name != "auto" else torch.float16
    inputs = make_inputs(batch, SMALL, dtype)
    inputs.key[2, 1, 7] = value
    inputs.value[5, 0, 0] = value
    layer = make_layer(format_name, SMALL, dtype)
    _, _, bad = run_step(inputs, layer, batch, backend)
    assert bad.nonzero().flatten().tolist() == [2, 5]
    for row in (2, 5):
        block, offset = divmod(int(batch.slot_mapping[row]), SMALL.block_size)
        for cache in (layer.key, layer.value):
            assert not cache[block, :, offset].any()
        if layer.key_scale is not None:
            assert (layer.key_scale[block, :, offset] == 2.0**-24).all()
    assert all(cache.isfinite().all() for cache in layer.tensors)


def test_flags_of_all_layers_add_up():
    batch = make_batch([(0, 3)], SMALL.block_size)
    layer = make_layer("int8/per_token", SMALL, torch.float32)
    for backend in ("torch", "numba"):
        plan = ops.plan_step(batch, layer, backend=backend)
        for row in (0, 2):
            inputs = make_inputs(batch, SMALL, torch.float32)
            inputs.value[row] = torch.nan
            ops.store_kv(inputs.query, inputs.key, inputs.value, inputs.rotary, layer, plan)
        assert ops.bad_rows(plan).tolist() == [True, False, True]


@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_addresses_past_two_to_the_31(backend):
    """Two caches of 2^31 bytes and a block: the system hands out the pages that are touched, and only those."""
    shape = Shape(2, 1, 64, 32, num_blocks=(1 << 31) // (64 * 32) + 1)
    caches = [torch.empty(shape.num_blocks, 1, 32, 64, dtype=torch.int8) for _ in range(2)]
    scales = [torch.empty(shape.num_blocks, 1, 32, 1, dtype=torch.float16) for _ in range(2)]
    layer = LayerKV(make_layer("int8/per_token", SMALL, torch.float32).format, *caches, *scales)
    last = shape.num_blocks - 1
    batch = PagedBatch(np.arange(5) + last * 32, np.array([0, 5]), np.array([5]), np.array([[last]]))
    inputs = make_inputs(batch, shape, torch.float32)
    _, expected, _ = run_step(inputs, layer, batch, "reference")
    layer.key[last], layer.value[last] = 7, 7
    _, got, _ = run_step(inputs, layer, batch, backend)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-2)  # a code may differ by 1 of 127


def shared_batch(suffixes: list[int], shared_blocks: int) -> PagedBatch:
    lengths = [(shared_blocks * SMALL.block_size + suffix - 1, 1) for suffix in suffixes]
    return make_batch(lengths, SMALL.block_size, shared_blocks=shared_blocks)


@pytest.mark.parametrize("format_name", ["auto", "int8/per_token", "int8/per_group_32"], ids=describe)
@pytest.mark.parametrize("suffixes", [[1, 1], [1, 33, 70, 5, 64], [32, 97]], ids=str)
def test_cascade_agrees_with_plain_decode(format_name, suffixes):
    torch.manual_seed(6)
    batch = shared_batch(suffixes, shared_blocks=18)  # 576 tokens: one full split and part of a second
    layer = make_layer(format_name, SMALL, torch.float32)
    inputs = make_inputs(batch, SMALL, torch.float32)
    run_step(inputs, layer, batch, "reference")
    poison(layer, batch)
    outputs = [
        run_step(inputs, clone(layer), batch, backend, cascade=cascade)[1]
        for backend, cascade in (("numba", True), ("numba", False), ("torch", False))
    ]
    for other in outputs[1:]:
        torch.testing.assert_close(outputs[0], other, rtol=0, atol=ATTENTION_TOLERANCE[torch.float32])


def test_deterministic_rows_have_the_same_bits_alone_in_a_batch_and_in_chunks():
    torch.manual_seed(7)
    length = 700
    shape = Shape(9, 3, 64, 32, num_blocks=128)
    whole = make_batch([(0, length)], 32, 128)
    inputs = make_inputs(whole, shape, torch.bfloat16)
    layer = make_layer("int8/hadamard", shape, torch.bfloat16)
    query, expected, _ = run_step(inputs, layer, whole, "numba", deterministic=True)
    for edges in ([0, 33, 699, 700], [0, 512, 700]):
        for start, end in pairwise(edges):
            rows = slice(start, end)
            part = PagedBatch(whole.slot_mapping[rows], np.array([0, end - start]), np.array([end]), whole.block_tables)
            cut = Inputs(
                inputs.query[rows], inputs.key[rows], inputs.value[rows], tuple(t[rows] for t in inputs.rotary)
            )
            got_query, got, _ = run_step(cut, layer, part, "numba", deterministic=True)
            assert torch.equal(got_query, query[rows])
            assert torch.equal(got, expected[rows])
