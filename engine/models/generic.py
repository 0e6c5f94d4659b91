"""Any decoder that transformers loads, over our paged cache: its modules, our attention.

What it caches is observed by a run of two tokens, not guessed from its config. And what cannot be seen from outside is
found out by a second run: sixteen tokens through the paged cache must give the logits of transformers' own attention.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from engine.errors import ModelLoadError
from engine.kv_cache import KVCache
from engine.model_config import ModelShape, eos_ids
from engine.models.paged_attention import ObservingStep, PagedAttention, PagedStep
from engine.models.self_check import check_against
from engine.rope_config import refuse_moving
from kernels.plan import StepPlan
from kernels.quant import hadamard

_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


class GenericModel:
    """A loaded model of transformers."""

    def __init__(self, module: PreTrainedModel, attention: PagedAttention) -> None:
        """Observe and check a module that was loaded with this attention.

        Raises:
            ModelLoadError: it computes attention in a way that the cache or its kernels do not.
        """
        self._module = module
        self._attention = attention
        arguments = inspect.signature(module.forward).parameters
        if "position_ids" not in arguments:
            raise ModelLoadError(f"{type(module).__name__} takes no position_ids, so its sequences cannot share a step")
        self._keeps_rows = "logits_to_keep" in arguments
        self.config = self._observe()
        head_dim = self.config.head_dim
        self._rotation = hadamard(head_dim, device=module.device) if head_dim % 16 == 0 else None
        check_against(self, self._own_logits, dtype=module.dtype, device=module.device)

    @torch.inference_mode()
    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        sample_rows: torch.Tensor,
        cache: KVCache,
        plans: Sequence[StepPlan],
    ) -> torch.Tensor:
        """See `engine.models.interface.Model`."""
        step = PagedStep.begin(len(input_ids), cache.layers, plans, self._rotation)
        more = {"logits_to_keep": sample_rows} if self._keeps_rows else {}
        with self._attention.during(step):
            logits = self._call(input_ids, positions, **more)
        return (logits if self._keeps_rows else logits.index_select(0, sample_rows)).float()

    def _call(self, input_ids: torch.Tensor, positions: torch.Tensor, **more: Any) -> torch.Tensor:
        """[num_rows, vocab_size]."""
        output = self._module(input_ids=input_ids[None], position_ids=positions[None], use_cache=False, **more)
        logits: torch.Tensor = output.logits[0]
        return logits

    @torch.inference_mode()
    def _observe(self) -> ModelShape:
        config = self._module.config.get_text_config()
        tokens = torch.zeros(2, dtype=torch.long, device=self._module.device)
        step = ObservingStep()
        with self._attention.during(step):
            self._call(tokens, torch.arange(2, device=tokens.device))
        if sorted(step.kv_shapes) != list(range(config.num_hidden_layers)):
            raise ModelLoadError(
                f"{_name(config)}: of {config.num_hidden_layers} layers only {sorted(step.kv_shapes)} keep keys and values "
                f"of their own; a state of another kind has no place in the paged cache"
            )
        if len(shapes := set(step.kv_shapes.values())) != 1:
            raise ModelLoadError(
                f"{_name(config)}: got layers of {sorted(shapes)} (KV heads, channels), wanted all alike"
            )
        return model_shape(config, *shapes.pop(), generation=self._module.generation_config)

    def _own_logits(self, input_ids: torch.Tensor) -> torch.Tensor:
        """[num_tokens, vocab_size] by the attention of transformers itself."""
        self._module.set_attn_implementation("eager")
        try:
            return self._call(input_ids, torch.arange(len(input_ids), device=input_ids.device))
        finally:
            self._module.set_attn_implementation(self._attention.name)


def load_generic(folder: Path, *, dtype: torch.dtype, device: torch.device) -> GenericModel:
    """Load whatever transformers makes of a folder, weights that are quantized in a way it knows included.

    Args:
        folder: with config.json and weights; code in it is never run.
        dtype: of weights and activations.
        device: of the weights.

    Raises:
        ModelLoadError: transformers cannot load it, or the paged cache cannot serve it.
    """
    attention = PagedAttention()
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        _refuse_config(config)
        # a quantized checkpoint is unpacked on its device; others are moved there
        where = {"device_map": {"": device}} if getattr(config, "quantization_config", None) else {}
        module = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=dtype, attn_implementation=attention.name, local_files_only=True, **where
        )
    except (OSError, ValueError, KeyError, AttributeError, ImportError, RuntimeError) as error:
        raise ModelLoadError(f"{folder}: transformers cannot load it: {error}") from error
    if not where:
        torch.nn.Module.to(module, device)
    return GenericModel(module, attention)


def model_shape(config: PreTrainedConfig, num_kv_heads: int, head_dim: int, *, generation: Any) -> ModelShape:
    """Return what the engine needs to know of a decoder's config."""
    longest = getattr(config, "max_position_embeddings", None)
    if not isinstance(longest, int) or longest < 1:
        raise ModelLoadError(
            f"{_name(config)}: max_position_embeddings: got {longest}, wanted the model's limit in tokens"
        )
    window = _sliding_window(config)
    return ModelShape(
        architecture=_name(config),
        num_layers=config.num_hidden_layers,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=config.vocab_size,
        max_position=min(longest, window or longest),
        sliding_window=window,
        rope_text=json.dumps(getattr(config, "rope_parameters", None), sort_keys=True),
        eos_token_ids=eos_ids(config.to_dict(), {} if generation is None else generation.to_dict()),
    )


def _refuse_config(whole: PreTrainedConfig) -> None:
    """Refuse what shows only beyond the few tokens that a model is checked with."""
    config = whole.get_text_config()
    if whole.is_encoder_decoder:
        raise ModelLoadError(f"{_name(whole)} is an encoder-decoder, wanted a decoder")
    if unknown := set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES:
        raise ModelLoadError(f"{_name(whole)} has layers of {', '.join(sorted(unknown))}, wanted full attention in all")
    for kind in _rope_kinds(getattr(config, "rope_parameters", None) or {}):
        refuse_moving(kind)


def _rope_kinds(parameters: dict[str, Any]) -> set[str]:
    """The kinds of RoPE, of one for all layers or of one for each type of layer."""
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return {str(each.get("rope_type", "default")) for each in (nested or [parameters])}


def _sliding_window(config: PreTrainedConfig) -> int | None:
    """The window, if some layer has one."""
    types = getattr(config, "layer_types", None)
    slides = getattr(config, "use_sliding_window", True) and (not types or "sliding_attention" in types)
    window: int | None = getattr(config, "sliding_window", None)
    return window if slides else None


def _name(config: PreTrainedConfig) -> str:
    return str((config.architectures or [config.model_type])[0])
