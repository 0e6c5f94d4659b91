"""The shape of a model, read from the config.json of its folder. Loads no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError

_QKV_BIAS_DEFAULT = {"Qwen2ForCausalLM": True}  # it has them without saying so
_QK_NORM = frozenset({"Qwen3ForCausalLM"})
_ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding."""

    theta: float
    kind: str = "default"
    """`default`, `linear` or `llama3`."""
    factor: float = 1.0
    """linear, llama3: how much longer the context is than in pre-training."""
    low_freq_factor: float = 1.0
    """llama3."""
    high_freq_factor: float = 1.0
    """llama3."""
    original_max_position: int = 0
    """llama3: context of the pre-training, in tokens."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the lean forward needs to know of a decoder of the Llama family."""

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    """Tokens the model was made for."""
    norm_eps: float
    rope: RopeConfig
    tied_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """RMSNorm over each head of q and k, before RoPE."""
    eos_token_ids: tuple[int, ...]

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read config.json and, for more end-of-sequence ids, generation_config.json.

        Raises:
            ModelLoadError: a file that is missing or no JSON, or a model that the forward would get wrong.
        """
        raw = _read_json(folder / "config.json")
        generation = folder / "generation_config.json"
        try:
            return cls._from_dict(raw, _read_json(generation) if generation.is_file() else {})
        except KeyError as error:
            raise ModelLoadError(f"{folder / 'config.json'}: {error} is missing") from error

    @classmethod
    def _from_dict(cls, raw: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
        _refuse_unknown(raw)
        architecture = (raw.get("architectures") or ["?"])[0]
        attention_bias = bool(raw.get("attention_bias", False))
        num_heads = raw["num_attention_heads"]
        return cls(
            architecture=architecture,
            num_layers=raw["num_hidden_layers"],
            hidden_size=raw["hidden_size"],
            intermediate_size=raw["intermediate_size"],
            num_heads=num_heads,
            num_kv_heads=raw.get("num_key_value_heads") or num_heads,
            head_dim=raw.get("head_dim") or raw["hidden_size"] // num_heads,
            vocab_size=raw["vocab_size"],
            max_position=raw["max_position_embeddings"],
            norm_eps=raw["rms_norm_eps"],
            rope=_rope(raw),
            tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
            qkv_bias=_QKV_BIAS_DEFAULT.get(architecture, attention_bias),
            o_bias=attention_bias,
            mlp_bias=bool(raw.get("mlp_bias", False)),
            qk_norm=architecture in _QK_NORM,
            eos_token_ids=_eos_ids(raw, generation),
        )


def _rope(raw: Mapping[str, Any]) -> RopeConfig:
    """Read both spellings: `rope_parameters`, and the older `rope_theta` beside `rope_scaling`."""
    given = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    kind = given.get("rope_type") or given.get("type") or "default"
    theta = float(given.get("rope_theta") or raw.get("rope_theta") or 10_000.0)
    if kind not in _ROPE_TYPES:
        raise ModelLoadError(f"RoPE scaling: got {kind!r}, wanted one of {_ROPE_TYPES}")
    if kind == "default":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, kind, factor=float(given["factor"]))
    return RopeConfig(
        theta,
        kind,
        factor=float(given["factor"]),
        low_freq_factor=float(given["low_freq_factor"]),
        high_freq_factor=float(given["high_freq_factor"]),
        original_max_position=int(given["original_max_position_embeddings"]),
    )


def _refuse_unknown(raw: Mapping[str, Any]) -> None:
    """Refuse what would load and then compute something else."""
    window = raw.get("sliding_window")
    if window and raw.get("use_sliding_window", True) and window < raw["max_position_embeddings"]:
        raise ModelLoadError(f"sliding_window: got {window}, wanted a model that attends to all its context")
    if (activation := raw.get("hidden_act", "silu")) != "silu":
        raise ModelLoadError(f"hidden_act: got {activation!r}, wanted 'silu'")
    if (part := raw.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ModelLoadError(f"partial_rotary_factor: got {part}, wanted 1")
    if raw.get("quantization_config"):
        raise ModelLoadError("quantization_config: quantized checkpoints cannot be loaded")


def _eos_ids(*configs: Mapping[str, Any]) -> tuple[int, ...]:
    ids: set[int] = set()
    for config in configs:
        value = config.get("eos_token_id")
        ids.update([] if value is None else value if isinstance(value, list) else [value])
    return tuple(sorted(ids))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: cannot be read ({error})") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: got {type(value).__name__}, wanted an object")
    return value
