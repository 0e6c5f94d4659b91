"""transformers probes a package called `kernels` for its version: ours must not look like the one it means."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import is_kernels_available

import kernels
from tests.engine.tiny_model import save_tiny_model


def test_transformers_loads_and_runs_a_model_beside_our_kernels(tmp_path):
    assert not hasattr(kernels, "__version__")
    assert not is_kernels_available()
    model = AutoModelForCausalLM.from_pretrained(save_tiny_model(tmp_path))
    with torch.inference_mode():
        assert model(torch.tensor([[1, 2, 3]])).logits.isfinite().all()
