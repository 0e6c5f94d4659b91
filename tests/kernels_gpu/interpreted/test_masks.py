"""The second arm of the poison tests: take one mask out of the attention kernel, and the garbage shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels import ops
from tests.kernels.cases import Shape, clone, make_batch, make_inputs, make_layer, poison
from tests.kernels.mutants import mutant

LENGTHS = {"decode": [(20, 1), (75, 1)], "chunk": [(17, 13), (75, 1)]}
WHOLE_TILES = {"PER_CHANNEL, True, False,": "PER_CHANNEL, False, False,"}  # the last tile like all others
OPEN_TILES = {"PER_CHANNEL, True, True,": "PER_CHANNEL, False, True,"}
SCORES = {"visible = live[None, :] &": "visible = (live[None, :] | True) &", "< limits[:, None]": "< 2**30"}
VALUES = {"if MASKED:\n        loaded": "if False:\n        loaded"}
SCALES = {"elif MASKED:": "elif False:"}


@pytest.mark.parametrize(
    ("format_name", "lengths", "changes"),
    [
        ("auto", "decode", WHOLE_TILES),
        ("auto", "chunk", WHOLE_TILES),
        ("int8/per_token", "decode", WHOLE_TILES),
        ("int8/per_token", "chunk", WHOLE_TILES),
        ("int8/per_channel", "decode", OPEN_TILES),
        ("int8/per_token", "chunk", SCORES),
        ("auto", "decode", VALUES),
        ("int8/per_token", "decode", SCALES),
    ],
    ids=["16-bit-decode", "16-bit-chunk", "int8-decode", "int8-chunk", "open", "scores", "values", "scales"],
)
def test_without_a_mask_the_kernel_shows_the_poison(format_name, lengths, changes, monkeypatch, tmp_path):
    torch.manual_seed(5)
    shape = Shape(num_heads=6, num_kv_heads=2, head_dim=64, block_size=16)
    batch = make_batch(LENGTHS[lengths], shape.block_size)
    # whole tiles of blocks in each table, so that the kernel without a mask reads nobody's blocks and no other memory
    tables, slots = (np.pad(array, ((0, 0), (0, 3)), mode="edge") for array in (batch.block_tables, batch.open_slots))
    tables[:, -3:] = batch.block_tables[0, -1]
    batch = replace(batch, block_tables=tables, open_slots=slots)
    layer = make_layer(format_name, shape, torch.float32)
    poison(layer, batch)
    inputs = make_inputs(batch, shape, torch.float32)

    def output(backend):
        cache = clone(layer)
        plan = ops.plan_step(batch, cache, backend=backend)
        query = ops.store_kv(inputs.query, inputs.key, inputs.value, inputs.rotary, cache, plan)
        return ops.paged_attention(query, cache, plan, scale=0.125)

    expected = output("reference")
    assert (output("triton") - expected).abs().max() < 5e-3  # a code may differ by 1
    changed = mutant("kernels.gpu.attend", changes, tmp_path).attend
    monkeypatch.setattr("kernels.gpu.paged_decode.attend", changed)
    monkeypatch.setattr("kernels.gpu.paged_prefill.attend", changed)
    assert not (output("triton") - expected).abs().max() < 0.05  # NaN counts
