"""The Llama family as one function over plain tensors: Llama, Mistral, SmolLM2, Qwen2 and Qwen3.

Weights are fused where they share an input (q, k, v; gate, up). Keys and values live in the paged cache alone, so a
prompt in chunks, a prefix hit and a decode step are the same code.

For a rotated cache the Hadamard matrix H of a head is folded into its weights: W_v becomes H · W_v, and since H is its
own inverse, W_o becomes W_o · H. Values then come rotated, at no cost, and leave as they were. Layers that are skipped
are rotated as well: it changes nothing but roundings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch.nn import functional

from engine.kv_cache import KVCache
from engine.layers import Linear, Rotary, rms_norm, silu_and_mul
from engine.model_config import ModelConfig
from kernels import ops
from kernels.layout import LayerKV
from kernels.plan import StepPlan
from kernels.quant import hadamard

Change = Callable[[torch.Tensor], torch.Tensor]
"""What is done to a tensor of the checkpoint, in fp64, before it is cast."""


class Weights(Protocol):
    """Hands out the tensors of a checkpoint by name, checked for shape and moved to their dtype and device."""

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""

    def take(self, name: str, *shape: int, change: Change | None = None) -> torch.Tensor:
        """Return one tensor, changed."""


Product = TypeVar("Product")
"""What a weight and its bias become."""
MakeProduct = Callable[[torch.Tensor, torch.Tensor | None], Product]


@dataclass(frozen=True, slots=True)
class Layer(Generic[Product]):
    """The weights of a decoder layer."""

    input_norm: torch.Tensor  # [hidden_size]
    qkv: Product  # hidden_size -> (num_heads + 2 * num_kv_heads) * head_dim
    qk_norms: tuple[torch.Tensor, torch.Tensor] | None  # [head_dim] each
    o: Product  # num_heads * head_dim -> hidden_size
    mlp_norm: torch.Tensor  # [hidden_size]
    gate_up: Product  # hidden_size -> 2 * intermediate_size
    down: Product  # intermediate_size -> hidden_size


class LlamaModel:
    """A loaded model."""

    def __init__(
        self, config: ModelConfig, weights: Weights, *, max_position: int, rotate_values: bool = False
    ) -> None:
        """Take the weights.

        Args:
            config: shape of the model.
            weights: of the checkpoint.
            max_position: most tokens of a sequence, for the rotary table.
            rotate_values: fold the rotation of values into the weights, for a rotated cache.
        """
        self.config = config
        hidden, vocab = config.hidden_size, config.vocab_size
        self._embedding = weights.take("model.embed_tokens.weight", vocab, hidden)
        rotation = hadamard(config.head_dim).double() if rotate_values else None
        self._layers = [
            take_layer(config, weights, f"model.layers.{index}.", rotation, Linear)
            for index in range(config.num_layers)
        ]
        self._norm = weights.take("model.norm.weight", hidden)
        tied = config.tied_embeddings
        self._lm_head = Linear(self._embedding if tied else weights.take("lm_head.weight", vocab, hidden))
        self._rotary = Rotary(config.rope, config.head_dim, max_position, weights.device)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        sample_rows: torch.Tensor,
        cache: KVCache,
        plans: Sequence[StepPlan],
    ) -> torch.Tensor:
        """See `engine.models.interface.Model`."""
        hidden = functional.embedding(input_ids, self._embedding)
        rotary = self._rotary.at(positions)
        last = len(self._layers) - 1
        for index, layer in enumerate(self._layers):
            attended = self._attend(layer, hidden, rotary, cache.layers[index], plans[index])
            if index == last:  # nobody reads the other rows any more
                attended, hidden = attended.index_select(0, sample_rows), hidden.index_select(0, sample_rows)
            hidden = hidden + layer.o(attended)
            normed = rms_norm(hidden, layer.mlp_norm, self.config.norm_eps)
            hidden = hidden + layer.down(silu_and_mul(layer.gate_up(normed)))
        return self._lm_head(rms_norm(hidden, self._norm, self.config.norm_eps)).float()

    def _attend(
        self,
        layer: Layer[Linear],
        hidden: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        layer_kv: LayerKV,
        plan: StepPlan,
    ) -> torch.Tensor:
        """[num_tokens, num_heads * head_dim]: attention before its output projection."""
        config = self.config
        num_heads, num_kv_heads = config.num_heads, config.num_kv_heads
        normed = rms_norm(hidden, layer.input_norm, config.norm_eps)
        heads = layer.qkv(normed).view(len(hidden), num_heads + 2 * num_kv_heads, config.head_dim)
        query, key, value = torch.split(heads, [num_heads, num_kv_heads, num_kv_heads], dim=1)
        if layer.qk_norms is not None:
            q_norm, k_norm = layer.qk_norms
            query, key = rms_norm(query, q_norm, config.norm_eps), rms_norm(key, k_norm, config.norm_eps)
        rotated = ops.store_kv(query, key, value, rotary, layer_kv, plan)
        return ops.paged_attention(rotated, layer_kv, plan, scale=config.head_dim**-0.5).flatten(1)


def take_layer(
    config: ModelConfig,
    weights: Weights,
    prefix: str,
    rotation: torch.Tensor | None,
    make: MakeProduct[Product],
    make_down: MakeProduct[Product] | None = None,
) -> Layer[Product]:
    """Take the weights of one layer.

    Args:
        config: shape of the model.
        weights: of the checkpoint.
        prefix: of the layer's names.
        rotation: [head_dim, head_dim] fp64: folded into values; None: not rotated.
        make: makes a product of a weight and its bias.
        make_down: makes the product after the activation function, where that is not like the others.
    """
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim

    def norm(name: str, size: int) -> torch.Tensor:
        return weights.take(f"{prefix}{name}.weight", size)

    def rotate_rows(weight: torch.Tensor) -> torch.Tensor:
        """H · W for each head of v_proj's outputs, of its weight or its bias."""
        assert rotation is not None
        return (rotation @ weight.view(config.num_kv_heads, head_dim, -1)).view_as(weight)

    def rotate_columns(weight: torch.Tensor) -> torch.Tensor:
        """W · H for each head of o_proj's inputs."""
        assert rotation is not None
        return (weight.view(hidden, config.num_heads, head_dim) @ rotation).view_as(weight)

    changes: dict[str, Change] = {} if rotation is None else {"self_attn.v_proj": rotate_rows}

    def linear(sizes: dict[str, int], num_inputs: int, *, bias: bool, make: MakeProduct[Product] = make) -> Product:
        """One product for several projections of the same input."""
        weight = [
            weights.take(f"{prefix}{name}.weight", size, num_inputs, change=changes.get(name))
            for name, size in sizes.items()
        ]
        biases = (
            [weights.take(f"{prefix}{name}.bias", size, change=changes.get(name)) for name, size in sizes.items()]
            if bias
            else None
        )
        return make(torch.cat(weight), torch.cat(biases) if biases else None)

    output = weights.take(
        f"{prefix}self_attn.o_proj.weight", hidden, q_size, change=None if rotation is None else rotate_columns
    )
    return Layer(
        input_norm=norm("input_layernorm", hidden),
        qkv=linear(
            {"self_attn.q_proj": q_size, "self_attn.k_proj": kv_size, "self_attn.v_proj": kv_size},
            hidden,
            bias=config.qkv_bias,
        ),
        qk_norms=(norm("self_attn.q_norm", head_dim), norm("self_attn.k_norm", head_dim)) if config.qk_norm else None,
        o=make(output, weights.take(f"{prefix}self_attn.o_proj.bias", hidden) if config.o_bias else None),
        mlp_norm=norm("post_attention_layernorm", hidden),
        gate_up=linear({"mlp.gate_proj": inner, "mlp.up_proj": inner}, hidden, bias=config.mlp_bias),
        down=linear({"mlp.down_proj": hidden}, inner, bias=config.mlp_bias, make=make_down or make),
    )
