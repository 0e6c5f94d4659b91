"""A checkpoint whose residual stream is rotated: the same model, but with activations that int8 can hold.

R mixes the channels of the residual stream (`kernels.int8.spread`). What writes to the stream is multiplied by R, what
reads from it by R's inverse, which is R again. RMSNorm without a weight commutes with R, so each norm's weight becomes
part of the products that read it, and the norms that are left have a weight of ones. The last norm and the LM head are
an exception, for the head may be the embedding: see `kernels.int8.head_quantize`.

Source: QuaRot, Ashkboos et al. 2024; for the norms SliceGPT, Ashkboos et al. 2024.
"""

from __future__ import annotations

import torch

from engine.model_config import ModelConfig
from engine.models.llama import Change, Weights
from kernels.int8 import spread

_READERS = {
    "self_attn.q_proj.weight": "input_layernorm",
    "self_attn.k_proj.weight": "input_layernorm",
    "self_attn.v_proj.weight": "input_layernorm",
    "mlp.gate_proj.weight": "post_attention_layernorm",
    "mlp.up_proj.weight": "post_attention_layernorm",
}
_WRITERS = ("self_attn.o_proj.weight", "self_attn.o_proj.bias", "mlp.down_proj.weight", "mlp.down_proj.bias")
_TABLES = ("model.embed_tokens.weight", "lm_head.weight")


class RotatedWeights:
    """Hands out a checkpoint's tensors, rotated."""

    def __init__(self, inner: Weights, config: ModelConfig) -> None:
        self._inner = inner
        self._hidden = config.hidden_size
        self._norms: dict[str, torch.Tensor] = {}

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self._inner.device

    def take(self, name: str, *shape: int, change: Change | None = None) -> torch.Tensor:
        """Return one tensor, changed, then rotated."""
        layer, short = _split(name)
        if short.removesuffix(".weight") in _READERS.values():
            return torch.ones_like(self._norm(name))
        tensor = self._inner.take(name, *shape, change=change)
        if short in _READERS:
            return spread(tensor * self._norm(f"{layer}{_READERS[short]}.weight"))
        if short in _WRITERS:
            return spread(tensor.t()).t()
        return spread(tensor) if short in _TABLES else tensor

    def _norm(self, name: str) -> torch.Tensor:
        """[hidden_size]: a norm's weight; the checkpoint hands it out once, and several products want it."""
        if name not in self._norms:
            self._norms[name] = self._inner.take(name, self._hidden)
        return self._norms[name]


def _split(name: str) -> tuple[str, str]:
    """`model.layers.3.mlp.up_proj.weight` is `model.layers.3.` and `mlp.up_proj.weight`."""
    if not name.startswith("model.layers."):
        return "", name
    parts = name.split(".", 3)
    return ".".join(parts[:3]) + ".", parts[3]
