"""The second arm of the poison tests: take the mask out of a kernel, and the garbage shows in its output."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.cpu.attend import attend
from tests.kernels.cases import Shape, clone, make_batch, make_inputs, make_layer, poison, run_step
from tests.kernels.mutants import mutant

SHAPE = Shape(num_heads=6, num_kv_heads=2, head_dim=64, block_size=16)
LENGTHS = {"decode": [(20, 1), (75, 1)], "chunk": [(17, 13), (75, 1)]}


def no_mask_of_reference(monkeypatch, tmp_path):
    """All slots of the row's block instead of those up to its own."""
    whole = "range((position // layer.block_size + 1) * layer.block_size)"
    plan = mutant("kernels.reference", {"range(position + 1)": whole}, tmp_path).ReferencePlan
    monkeypatch.setattr("kernels.reference.ReferencePlan", plan)


def no_mask_of_torch(monkeypatch, tmp_path):
    """Nothing is hidden from softmax: padding, and tokens that come later."""
    rows = mutant(
        "kernels.torch_rows", {"torch.from_numpy(visible).to(": "torch.from_numpy(visible | True).to("}, tmp_path
    )
    monkeypatch.setattr("kernels.torch_ops.RowMap", rows.RowMap)


def no_clamp_of_torch(monkeypatch, tmp_path):
    """Padding is masked, but read from wherever the block table points to."""
    rows = mutant("kernels.torch_rows", {"np.minimum(everything, last)": "everything + 0 * last"}, tmp_path)
    monkeypatch.setattr("kernels.torch_ops.RowMap", rows.RowMap)


def no_mask_of_numba(monkeypatch, tmp_path):
    """Its masks are two arrays, where an item ends and what a row sees: here, all slots of the last block."""

    def unmasked(work, items, row_tokens, row_visible, *rest):
        items = items.copy()
        items[:, 2] = -(-items[:, 2] // SHAPE.block_size) * SHAPE.block_size
        row_visible = np.repeat(items[:, 2], items[:, 4] - items[:, 3])
        attend(work, items, row_tokens, row_visible, *rest)

    monkeypatch.setattr("kernels.cpu.plan.attend", unmasked)


@pytest.mark.parametrize(
    ("backend", "take_out", "lengths"),
    [
        ("reference", no_mask_of_reference, "decode"),
        ("reference", no_mask_of_reference, "chunk"),
        ("torch", no_mask_of_torch, "decode"),
        ("torch", no_mask_of_torch, "chunk"),
        ("torch", no_clamp_of_torch, "decode"),
        ("numba", no_mask_of_numba, "decode"),
        ("numba", no_mask_of_numba, "chunk"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
@pytest.mark.parametrize("format_name", ["auto", "int8/per_token"], ids=["auto", "int8"])
def test_without_its_mask_a_kernel_shows_the_poison(format_name, backend, take_out, lengths, monkeypatch, tmp_path):
    torch.manual_seed(5)
    batch = make_batch(LENGTHS[lengths], SHAPE.block_size)
    layer = make_layer(format_name, SHAPE, torch.float32)
    poison(layer, batch)
    inputs = make_inputs(batch, SHAPE, torch.float32)
    _, expected, _ = run_step(inputs, clone(layer), batch, "reference")
    _, masked, _ = run_step(inputs, clone(layer), batch, backend)
    assert (masked - expected).abs().max() < 5e-3  # a code may differ by 1
    take_out(monkeypatch, tmp_path)
    _, unmasked, _ = run_step(inputs, layer, batch, backend)
    assert not (unmasked - expected).abs().max() < 0.05  # NaN counts
