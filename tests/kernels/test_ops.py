"""The spec against plain attention, block copies, and what the ops refuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels import ops
from kernels.plan import PagedBatch
from kernels.quant import SERVED_FORMATS
from tests.kernels.cases import Shape, clone, make_batch, make_inputs, make_layer, run_step

SHAPE = Shape(num_heads=4, num_kv_heads=2, head_dim=16, block_size=8, num_blocks=8)


@pytest.mark.parametrize(("format_name", "error"), [("auto", 1e-5), ("int8/per_token", 0.03), ("int8/hadamard", 0.03)])
def test_reference_agrees_with_plain_softmax_attention(format_name, error):
    """Without a cache: rotate, attend, and for int8 be as near as codes of 1 in 127 allow."""
    torch.manual_seed(2)
    batch = make_batch([(0, 11)], block_size=8, num_blocks=8)
    inputs = make_inputs(batch, SHAPE, torch.float32)
    _, got, _ = run_step(inputs, make_layer(format_name, SHAPE, torch.float32), batch, "reference")

    cos, sin = (table[:, None, :8] for table in inputs.rotary)  # the sines' first half has the sign of rotate_half
    turn = torch.complex(cos, -sin)
    query, key = (
        torch.view_as_real(torch.complex(x[..., :8].contiguous(), x[..., 8:].contiguous()) * turn).mT.flatten(-2)
        for x in (inputs.query, inputs.key)
    )
    scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(2, dim=1)) / 4
    scores = scores.masked_fill(torch.ones(11, 11).triu(1).bool(), -torch.inf)
    expected = torch.einsum("hqk,khd->qhd", scores.softmax(-1), inputs.value.repeat_interleave(2, dim=1))
    torch.testing.assert_close(got, expected, rtol=0, atol=error)


def test_a_block_of_per_channel_keys_is_quantized_when_it_is_full_and_read_open_by_its_own_rows():
    torch.manual_seed(3)
    batch = make_batch([(0, 8)], block_size=8, num_blocks=8)
    inputs = make_inputs(batch, SHAPE, torch.float32)
    layer = make_layer("int8/per_channel", SHAPE, torch.float32)
    _, own, _ = run_step(inputs, layer, batch, "reference")
    block = batch.block_tables[0, 0]
    assert layer.key_open is not None
    assert layer.key_scale is not None
    opened = layer.key_open[0]
    torch.testing.assert_close(layer.key_scale[block].float(), opened.abs().amax(dim=1) / 127, rtol=1e-3, atol=0)
    error = layer.key[block].float() * layer.key_scale[block].float()[:, None] - opened
    assert (error.abs() <= layer.key_scale[block].float()[:, None] * 0.5001).all()
    _, exact, _ = run_step(inputs, replace_values(layer), batch, "reference")
    assert not torch.equal(own, exact)  # the values are quantized all the same
    layer.key[block] = 0
    plan = ops.plan_step(batch, layer, backend="reference")
    query = ops.store_kv(inputs.query, inputs.key, inputs.value, inputs.rotary, layer, plan)
    layer.key[block] = 0  # a row of the block itself does not look at its codes
    assert torch.equal(ops.paged_attention(query, layer, plan, scale=0.25), own)


def replace_values(layer):
    copied = clone(layer)
    return replace(make_layer("auto", SHAPE, torch.float32), value=torch.zeros_like(copied.value).float())


@pytest.mark.parametrize("format_name", SERVED_FORMATS[:4] + SERVED_FORMATS[-1:])
def test_copy_blocks_performs_a_chain_in_order_and_leaves_the_tail(format_name):
    shape = Shape(4, 2, 32, 8, num_blocks=4)
    layers = [make_layer(format_name, shape, dtype, num_open=4) for dtype in (torch.float32, torch.bfloat16)]
    before = [clone(layer) for layer in layers]
    open_copies = [(0, 1), (1, 2)] if layers[0].key_open is not None else []
    ops.copy_blocks(layers, [(0, 1, 5), (1, 2, 8), (3, 3, 8), (3, 0, 0)], open_copies)
    for layer, old in zip(layers, before, strict=True):
        if layer.key_open is not None:
            assert torch.equal(layer.key_open, old.key_open[[0, 0, 0, 3]])
        for tensor, was in zip(layer.tensors, old.tensors, strict=True):
            if tensor is layer.key_scale and format_name == "int8/per_channel":
                assert torch.equal(tensor[1], was[0])  # a block's
                continue
            expected = torch.cat((was[0, :, :5], was[1, :, 5:]), dim=1)
            assert torch.equal(tensor[1], expected)
            assert torch.equal(tensor[2], expected)
            assert torch.equal(tensor[3], was[3])
            assert torch.equal(tensor[0], was[0])


@pytest.mark.parametrize(
    ("copies", "open_copies", "names"),
    [([(0, 4, 1)], [], "copy"), ([(-1, 0, 1)], [], "copy"), ([(0, 1, 9)], [], "copy"), ([], [(0, 2)], "open copy")],
)
def test_copy_blocks_refuses_what_the_cache_does_not_have(copies, open_copies, names):
    layer = make_layer("int8/per_channel", Shape(4, 2, 32, 8, num_blocks=4), torch.float32, num_open=2)
    with pytest.raises(ValueError, match=names):
        ops.copy_blocks([layer], copies, open_copies)


GOOD = {"slot_mapping": [0], "query_start_loc": [0, 1], "seq_lens": [1], "block_tables": [[0]]}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"slot_mapping": [64]}, "slot_mapping"),
        ({"slot_mapping": [-1]}, "slot_mapping"),
        ({"block_tables": [[8]]}, "block_tables"),
        ({"slot_mapping": [0, 1]}, "query_start_loc"),
        ({"query_start_loc": [0, 0], "slot_mapping": []}, "query_start_loc"),
        ({"seq_lens": [0]}, "seq_lens"),
        ({"seq_lens": [9]}, "seq_lens"),
        ({"seq_lens": [1, 1]}, "batch"),
        ({"seq_lens": [], "block_tables": np.zeros((0, 1)), "query_start_loc": [0], "slot_mapping": []}, "batch"),
    ],
)
def test_plan_step_refuses_arrays_that_do_not_fit(change, names):
    arrays = {name: np.asarray(value, dtype=np.int64) for name, value in {**GOOD, **change}.items()}
    with pytest.raises(ValueError, match=names):
        ops.plan_step(PagedBatch(**arrays), make_layer("auto", SHAPE, torch.float32))


def good_batch() -> PagedBatch:
    return PagedBatch(**{name: np.asarray(value, dtype=np.int64) for name, value in GOOD.items()})


def test_plan_step_refuses_blocks_that_should_be_open_and_are_not():
    layer = make_layer("int8/per_channel", SHAPE, torch.float32, num_open=2)
    for open_slots in (None, [[-1]], [[2]], [[0, 0]]):
        batch = replace(good_batch(), open_slots=None if open_slots is None else np.array(open_slots))
        with pytest.raises(ValueError, match="open_slots"):
            ops.plan_step(batch, layer)


def test_numba_refuses_what_it_has_no_kernel_for():
    batch = replace(good_batch(), open_slots=np.array([[0]]))
    with pytest.raises(ValueError, match="per_channel"):
        ops.plan_step(batch, make_layer("int8/per_channel", SHAPE, torch.float32), backend="numba")
    with pytest.raises(ValueError, match="heads of 24"):
        ops.plan_step(good_batch(), make_layer("auto", Shape(4, 2, 24, 8), torch.float32), backend="numba")
    with pytest.raises(ValueError, match="heads of 272"):
        ops.plan_step(good_batch(), make_layer("auto", Shape(4, 2, 272, 8), torch.float32), backend="numba")


def test_ops_refuse_tensors_that_do_not_fit():
    layer = make_layer("int8/per_token", SHAPE, torch.float32)
    plan = ops.plan_step(good_batch(), layer)
    query, row = torch.zeros(1, 4, 16), torch.zeros(1, 2, 16)
    rotary = (torch.zeros(1, 16), torch.zeros(1, 16))
    with pytest.raises(ValueError, match="backend"):
        ops.plan_step(good_batch(), layer, backend="cuda")
    with pytest.raises(ValueError, match="query: got"):
        ops.store_kv(torch.zeros(1, 3, 16), row, row, rotary, layer, plan)
    with pytest.raises(ValueError, match="key: got"):
        ops.store_kv(query, torch.zeros(2, 2, 16), row, rotary, layer, plan)
    with pytest.raises(ValueError, match="value: got"):
        ops.store_kv(query, row, torch.zeros(1, 2, 32)[..., ::2], rotary, layer, plan)
    with pytest.raises(ValueError, match="rotary: got"):
        ops.store_kv(query, row, row, (rotary[0].double(), rotary[1]), layer, plan)
    with pytest.raises(ValueError, match="query: got"):
        ops.paged_attention(torch.zeros(1, 4, 8), layer, plan, scale=1.0)
    for name in ("value", "key_scale", "value_scale"):
        with pytest.raises(ValueError, match=rf"layer\.{name}"):
            ops.plan_step(good_batch(), replace(layer, **{name: getattr(layer, name)[:2]}))
    for copy in ((0, 8, 1), (0, 1, 9), (-1, 0, 1)):
        with pytest.raises(ValueError, match="copy: got"):
            ops.copy_blocks([layer], [copy])
