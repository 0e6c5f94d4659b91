"""The Llama family with int8 weights and activations on the CPU: `LlamaModel`, between whose products stands one kernel.

The residual stream is rotated at load (`engine.rotation`) and so are values, head by head; only the input of the down
projection is rotated when it is known. The residual stream, attention and logits are fp32; the KV cache has its own
type.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.kv_cache import KVCache
from engine.layers import Rotary, rms_norm
from engine.model_config import ModelConfig
from engine.models.llama import Layer, Weights, take_layer
from engine.quantization import Array, Codes, Int8Linear, Sums, over_rows
from engine.rotation import RotatedWeights
from kernels import ops
from kernels.cpu import int8 as fused
from kernels.int8 import rotate, rotation_width
from kernels.layout import LayerKV
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
        self._embedding = Int8Linear(rotated.take("model.embed_tokens.weight", vocab, hidden))
        values = hadamard(config.head_dim).double()
        self._layers = [
            take_layer(config, rotated, f"model.layers.{index}.", values, Int8Linear, _down)
            for index in range(config.num_layers)
        ]
        self._norm: Array = rotated.take("model.norm.weight", hidden).numpy()
        tied = config.tied_embeddings
        self._lm_head = self._embedding if tied else Int8Linear(rotated.take("lm_head.weight", vocab, hidden))
        self._rotary = Rotary(config.rope, config.head_dim, max_position, weights.device)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        sample_rows: torch.Tensor,
        cache: KVCache,
        plans: Sequence[StepPlan],
    ) -> torch.Tensor:
        """Run one step; see `LlamaModel.forward`."""
        config = self.config
        rotary = self._rotary.at(positions)
        step = _Step(config, len(input_ids))
        embedding = self._embedding
        over_rows(fused.embed, step.num_rows, input_ids.numpy(), embedding.codes, embedding.scales, step.residual)
        step.normalize()
        last = len(self._layers) - 1
        for index, layer in enumerate(self._layers):
            attended = self._attend(layer, step, rotary, cache.layers[index], plans[index])
            if index == last:  # nobody reads the other rows any more
                if len(sample_rows) == 0:
                    return torch.empty((0, config.vocab_size))
                attended, step = attended.index_select(0, sample_rows), step.select(sample_rows)
            step.quantize(attended)
            step.add(layer.o, step.attended)
            step.activate(layer.gate_up)
            step.add(layer.down, step.inner)
        return step.logits(self._lm_head, self._norm)

    def _attend(
        self,
        layer: Layer[Int8Linear],
        step: _Step,
        rotary: tuple[torch.Tensor, torch.Tensor],
        layer_kv: LayerKV,
        plan: StepPlan,
    ) -> torch.Tensor:
        """[num_tokens, num_heads * head_dim] fp32: attention before its output projection."""
        config = self.config
        num_heads, num_kv_heads = config.num_heads, config.num_kv_heads
        heads = step.multiply(layer.qkv).view(step.num_rows, num_heads + 2 * num_kv_heads, config.head_dim)
        query, key, value = torch.split(heads, [num_heads, num_kv_heads, num_kv_heads], dim=1)
        if layer.qk_norms is not None:
            q_norm, k_norm = layer.qk_norms
            query, key = rms_norm(query, q_norm, config.norm_eps), rms_norm(key, k_norm, config.norm_eps)
        turned = ops.store_kv(query, key, value, rotary, layer_kv, plan)
        return ops.paged_attention(turned, layer_kv, plan, scale=config.head_dim**-0.5).flatten(1)


class _Step:
    """The rows of a step on their way through the layers, in memory that is allocated once."""

    def __init__(self, config: ModelConfig, num_rows: int, residual: torch.Tensor | None = None) -> None:
        hidden, inner, q_size = config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim
        qkv_size = q_size + 2 * config.num_kv_heads * config.head_dim
        self.num_rows = num_rows
        self._config = config
        self._stream = torch.empty((num_rows, hidden)) if residual is None else residual
        self.residual: Array = self._stream.numpy()
        """[num_rows, hidden_size] fp32."""
        self.normed = Codes(num_rows, hidden)
        self.attended = Codes(num_rows, q_size)
        self.inner = Codes(num_rows, inner)
        memory = torch.empty(num_rows * max(hidden, qkv_size, 2 * inner), dtype=torch.int32)
        self._to_qkv, self._to_hidden, self._to_inner = (
            Sums(memory, num_rows, size) for size in (qkv_size, hidden, 2 * inner)
        )
        self._qkv = torch.empty((num_rows, qkv_size))
        self._qkv_array: Array = self._qkv.numpy()
        self._width = rotation_width(inner)

    def select(self, rows: torch.Tensor) -> _Step:
        """Some rows alone."""
        return _Step(self._config, len(rows), self._stream.index_select(0, rows))

    def normalize(self) -> None:
        """From the residual stream to `normed`."""
        over_rows(fused.norm_quantize, self.num_rows, self.residual, self._config.norm_eps, *_parts(self.normed))

    def multiply(self, qkv: Int8Linear) -> torch.Tensor:
        """[num_rows, num_columns] fp32: the product with `normed`; it lasts until the next layer's."""
        qkv(self.normed, self._to_qkv)
        scales = self.normed.scales, qkv.scales, qkv.bias
        over_rows(fused.dequantize, self.num_rows, self._to_qkv.array, *scales, self._qkv_array)
        return self._qkv

    def quantize(self, attended: torch.Tensor) -> None:
        """From fp32 to `attended`."""
        over_rows(fused.quantize, self.num_rows, attended.numpy(), *_parts(self.attended))

    def add(self, linear: Int8Linear, rows: Codes) -> None:
        """Add a product to the residual stream, and normalize that."""
        linear(rows, self._to_hidden)
        scales = rows.scales, linear.scales, linear.bias
        written = self._config.norm_eps, self.residual, *_parts(self.normed)
        over_rows(fused.add_norm_quantize, self.num_rows, self._to_hidden.array, *scales, *written)

    def activate(self, gate_up: Int8Linear) -> None:
        """From `normed` to `inner`."""
        gate_up(self.normed, self._to_inner)
        scales = self.normed.scales, gate_up.scales, gate_up.bias
        over_rows(
            fused.silu_quantize, self.num_rows, self._to_inner.array, *scales, self._width, *_parts(self.inner)
        )

    def logits(self, head: Int8Linear, norm: Array) -> torch.Tensor:
        """[num_rows, vocab_size] fp32."""
        rotation = norm, self._config.norm_eps, rotation_width(self._config.hidden_size)
        over_rows(fused.head_quantize, self.num_rows, self.residual, *rotation, *_parts(self.normed))
        logits = torch.empty((self.num_rows, head.num_columns))
        sums = Sums(torch.empty(logits.numel(), dtype=torch.int32), *logits.shape)
        head(self.normed, sums)
        scales = self.normed.scales, head.scales, head.bias
        over_rows(fused.dequantize, self.num_rows, sums.array, *scales, logits.numpy())
        return logits


def _down(weight: torch.Tensor, bias: torch.Tensor | None) -> Int8Linear:
    """The down projection, its inputs rotated as `silu_quantize` does."""
    return Int8Linear(rotate(weight, rotation_width(weight.shape[1])), bias)


def _parts(codes: Codes) -> tuple[Array, Array]:
    return codes.array, codes.scales
