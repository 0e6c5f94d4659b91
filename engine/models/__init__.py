"""The architectures that have a lean forward."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from engine.models.llama import LlamaModel

ARCHITECTURES: Mapping[str, type[LlamaModel]] = MappingProxyType(
    {
        "LlamaForCausalLM": LlamaModel,
        "MistralForCausalLM": LlamaModel,
        "Qwen2ForCausalLM": LlamaModel,
        "Qwen3ForCausalLM": LlamaModel,
    }
)
