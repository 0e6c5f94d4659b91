"""Tiny random models of each architecture, made and saved by transformers, and what transformers says of a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB_SIZE = 97
MAX_POSITION = 512


def save_tiny_model(folder: Path, kind: str = "llama", **changes: Any) -> Path:
    """Save a model with random weights, and biases that are not zero; a change to `...` leaves the field out."""
    shape = {
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": MAX_POSITION,
        "initializer_range": 0.2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    sliding = {"sliding_window": None} if kind == "mistral" else {}
    torch.manual_seed(5)
    fields = {name: value for name, value in (shape | sliding | changes).items() if value is not ...}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **fields))
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.3)
    model.save_pretrained(folder)
    return folder


@torch.inference_mode()
def reference_logits(folder: Path, token_ids: list[int]) -> torch.Tensor:
    """[num_tokens, vocab_size] by transformers in fp32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    logits: torch.Tensor = model(torch.tensor([token_ids])).logits[0]
    return logits
