"""The Llama family with int8 weights and activations on the CPU: `LlamaModel`, a layer of which is one kernel.

The residual stream is rotated at load (`engine.rotation`) and so are values, head by head; only the input of the down
projection is rotated when it is known. The residual stream, attention and logits are fp32; the KV cache has its own
type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch

from engine.kv_cache import KVCache
from engine.layers import Rotary, rms_norm
from engine.model_config import ModelConfig
from engine.models.llama import Layer, Weights, take_layer
from engine.quantization import Array, Product, Team, empty_codes, empty_sums, quantize_linear
from engine.rotation import RotatedWeights
from kernels import ops
from kernels.cpu.int8_layer import advance, begin, finish
from kernels.int8 import hartley, rotate, rotation_width
from kernels.plan import StepPlan
from kernels.quant import hadamard


class Int8Llama:
    """A loaded model."""

    def __init__(self, config: ModelConfig, weights: Weights, *, max_position: int) -> None:
        """Take the weights and quantize them.

        Args:
            config: shape of the model.
            weights: of the checkpoint, in fp32.
            max_position: most tokens of a sequence, for the rotary table.
        """
        self.config = config
        hidden, vocab = config.hidden_size, config.vocab_size
        rotated = RotatedWeights(weights, config)
        self._embedding = quantize_linear(rotated.take("model.embed_tokens.weight", vocab, hidden))
        values = hadamard(config.head_dim).double()
        self._layers = [
            take_layer(config, rotated, f"model.layers.{index}.", values, quantize_linear, _down)
            for index in range(config.num_layers)
        ]
        self._norm: Array = rotated.take("model.norm.weight", hidden).numpy()
        self._hartley: Array = hartley(hidden // rotation_width(hidden)).numpy()
        tied = config.tied_embeddings
        self._lm_head = self._embedding if tied else quantize_linear(rotated.take("lm_head.weight", vocab, hidden))
        self._rotary = Rotary(config.rope, config.head_dim, max_position, weights.device)
        self._team = Team()

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        sample_rows: torch.Tensor,
        cache: KVCache,
        plans: Sequence[StepPlan],
    ) -> torch.Tensor:
        """Run one step; see `LlamaModel.forward`."""
        config, team, layers = self.config, self._team, self._layers
        rotary = self._rotary.at(positions)
        step = _Step(config, layers[0], len(input_ids))
        start = input_ids.numpy(), self._embedding, step.residual, config.norm_eps, step.normed
        team.run(begin, *start, layers[0].qkv, step.to_qkv, step.heads_array)
        attend = self._attention(step.heads, rotary, cache, plans)
        for index, (layer, following) in enumerate(pairwise(layers)):
            step.advance(team, attend(index), layer, following.qkv)
        attention = attend(len(layers) - 1)
        logits = torch.empty((len(sample_rows), config.vocab_size))
        if len(sample_rows):  # nobody reads the other rows any more
            sampled = _Step(config, layers[-1], len(sample_rows))
            sampled.residual[:] = step.residual[sample_rows.numpy()]
            sampled.advance(team, attention.index_select(0, sample_rows), layers[-1], None)
            (sums,) = empty_sums(len(sample_rows), self._lm_head)
            norm = self._norm, config.norm_eps, self._hartley
            team.run(finish, sampled.residual, *norm, sampled.normed, self._lm_head, sums, logits.numpy())
        return logits

    def _attention(
        self,
        heads: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        cache: KVCache,
        plans: Sequence[StepPlan],
    ) -> Callable[[int], torch.Tensor]:
        """Return what computes a layer's attention before its output projection, [num_tokens, num_heads * head_dim] fp32."""
        config, layers = self.config, self._layers
        query, key, value = torch.split(heads, [config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        first = dict(zip(plans, cache.layers, strict=True))
        scale = config.head_dim**-0.5
        bound = {plan: ops.bind(query, key, value, rotary, layer, plan, scale=scale) for plan, layer in first.items()}

        def attend(index: int) -> torch.Tensor:
            if (norms := layers[index].qk_norms) is not None:
                for part, norm in zip((query, key), norms, strict=True):
                    part.copy_(rms_norm(part, norm, config.norm_eps))
            return bound[plans[index]](cache.layers[index]).flatten(1)

        return attend


class _Step:
    """The memory that the rows of a step pass through: allocated once, and used by all layers."""

    def __init__(self, config: ModelConfig, layer: Layer[Product], num_rows: int) -> None:
        hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
        self.residual: Array = np.empty((num_rows, hidden), np.float32)
        self.normed = empty_codes(num_rows, hidden)
        self.to_qkv, *self._sums = empty_sums(num_rows, layer.qkv, layer.o, layer.gate_up)
        self.heads = torch.empty((num_rows, config.num_heads + 2 * config.num_kv_heads, head_dim))
        """What attention starts from."""
        self.heads_array: Array = self.heads.view(num_rows, -1).numpy()
        self._attended = empty_codes(num_rows, config.num_heads * head_dim)
        self._inner = empty_codes(num_rows, inner)
        self._numbers = config.norm_eps, rotation_width(inner)

    def advance(self, team: Team, attention: torch.Tensor, layer: Layer[Product], next_qkv: Product | None) -> None:
        """Go from a layer's attention to what the next one starts from, or to the end of the residual stream."""
        products = layer.o, layer.gate_up, layer.down, next_qkv or layer.qkv
        buffers = self._attended, self.normed, self._inner
        outputs = *self._sums, self.to_qkv, self.heads_array
        team.run(
            advance,
            *(attention.numpy(), self.residual, *self._numbers, *buffers, *products, *outputs),
            next_qkv is not None,
        )


def _down(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """The down projection, its inputs rotated as `silu_quantize` does."""
    return quantize_linear(rotate(weight, rotation_width(weight.shape[1])), bias)
