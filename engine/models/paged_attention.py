"""Our paged cache under a module of transformers: what its attention interface calls, and what it must not ask for.

A module hands over queries, keys and values after RoPE, so they are stored with an identity rotation. In a rotated cache
values are multiplied by the Hadamard matrix as they are stored and outputs once more, since it cannot be folded into
weights that are not ours.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import torch
from transformers import AttentionInterface

from engine.errors import ModelLoadError
from kernels import ops
from kernels.layout import LayerKV
from kernels.plan import StepPlan

_REFUSED = {
    "softcap": "caps its attention scores (softcap)",
    "s_aux": "has attention sinks",
    "position_bias": "adds a position bias to its attention scores",
    "alibi": "adds ALiBi to its attention scores",
    "cu_seq_lens_q": "packs its sequences itself",
}


class Step(Protocol):
    """What a layer's attention is computed by."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float
    ) -> torch.Tensor:
        """Return [num_tokens, num_heads, head_dim] for query, key and value [num_tokens, heads, head_dim] after RoPE."""
        ...


@dataclass(frozen=True, slots=True)
class PagedStep:
    """Stores and attends in the paged cache."""

    layers: Sequence[LayerKV]
    plans: Sequence[StepPlan]
    rotary: tuple[torch.Tensor, torch.Tensor]
    """The rotation that changes nothing, as `kernels.ops.store_kv` takes it."""
    rotation: torch.Tensor | None
    """[head_dim, head_dim] fp32: of values, for layers of a rotated format; None: the heads cannot be rotated."""

    @classmethod
    def begin(
        cls, num_tokens: int, layers: Sequence[LayerKV], plans: Sequence[StepPlan], rotation: torch.Tensor | None
    ) -> PagedStep:
        """Prepare a step of so many rows."""
        first = layers[0].key
        ones = torch.ones(num_tokens, first.shape[-1], dtype=torch.float32, device=first.device)
        return cls(layers, plans, (ones, torch.zeros_like(ones)), rotation)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float
    ) -> torch.Tensor:
        """See `Step`."""
        cached, plan = self.layers[layer], self.plans[layer]
        rotation = self.rotation if cached.format.rotated else None
        if rotation is not None:
            value = (value.float() @ rotation).to(value.dtype)
        query = ops.store_kv(query, key, value, self.rotary, cached, plan)
        attended = ops.paged_attention(query, cached, plan, scale=scale)
        return attended if rotation is None else (attended.float() @ rotation).to(attended.dtype)


@dataclass(frozen=True, slots=True)
class ObservingStep:
    """Notes what each layer would cache, and computes nothing of use."""

    kv_shapes: dict[int, tuple[int, int]] = field(default_factory=dict)
    """layer -> (KV heads, channels a head)."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float,  # noqa: ARG002  the protocol's
    ) -> torch.Tensor:
        """See `Step`."""
        if key.shape != value.shape:
            raise ModelLoadError(
                f"layer {layer}: keys have {key.shape[1]} heads of {key.shape[2]} channels, values {value.shape[1]} of "
                f"{value.shape[2]}; the cache wants them alike"
            )
        if layer in self.kv_shapes:
            raise ModelLoadError(f"layer {layer} attends more than once; the cache has one place for each layer")
        self.kv_shapes[layer] = (key.shape[1], key.shape[2])
        return torch.zeros_like(query)


class PagedAttention:
    """The attention of one loaded model, under a name of its own among the implementations of transformers.

    It keeps the step that runs, for not every module hands its arguments on to its attention.
    """

    def __init__(self) -> None:
        self.name = f"prefixgate_paged_{uuid.uuid4().hex}"
        self._step: Step | None = None
        AttentionInterface.register(self.name, self)

    @contextlib.contextmanager
    def during(self, step: Step) -> Iterator[None]:
        """Attend by this step inside the block."""
        self._step = step
        try:
            yield
        finally:
            self._step = None

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        """Attend for a module, with [1, heads, num_tokens, head_dim]: the tokens of all sequences are one row to it."""
        assert self._step is not None
        _refuse(module, attention_mask, options)
        scale = options.get("scaling")
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        rows = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
        rows = [tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in rows]
        layer = int(cast("int", module.layer_idx))
        return self._step.attend(layer, *rows, scale=scale).unsqueeze(0), None


def _refuse(module: torch.nn.Module, mask: torch.Tensor | None, options: dict[str, Any]) -> None:
    """Refuse what the kernels would silently leave out."""
    name = type(module).__name__
    for option, what in _REFUSED.items():
        if options.get(option) is not None:
            raise ModelLoadError(f"{name} {what}, which the paged kernels cannot do")
    if mask is not None:
        raise ModelLoadError(f"{name} brings an attention mask of its own, which the paged kernels cannot do")
    causal = options.get("is_causal")
    if not (getattr(module, "is_causal", True) if causal is None else causal):
        raise ModelLoadError(f"{name} attends to later tokens, which the paged kernels cannot do")
