"""The shape of a model, read from the config.json of its folder. Loads no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError
from engine.rope_config import RopeConfig

LEAN_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""The ones `engine.models.llama` computes; all others run in the modules of transformers."""

_QKV_BIAS_DEFAULT = {"Qwen2ForCausalLM": True}  # it has them without saying so
_QK_NORM = frozenset({"Qwen3ForCausalLM"})
_QWEN = frozenset({"Qwen2ForCausalLM", "Qwen3ForCausalLM"})  # their windows are off unless they say so
_DEFAULT_WINDOW = 4096


class NotLeanError(ModelLoadError):
    """The lean forward would get this model wrong; transformers may still load it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What the engine needs to know of any model: what is cached of a token, and how many tokens there may be."""

    architecture: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    """Most tokens of a sequence: what the model was made for, or its sliding window, where that is smaller."""
    sliding_window: int | None = None
    """Tokens that some layer attends to; None: all. Sequences are kept within it, so that it never acts."""
    rope_text: str = ""
    """All about positions that changes a cached key, for the cache's namespace."""
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(ModelShape):
    """What the lean forward needs to know of a decoder of the Llama family."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    norm_eps: float
    rope: RopeConfig
    tied_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """RMSNorm over each head of q and k, before RoPE."""

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
        longest = raw["max_position_embeddings"]
        window = _sliding_window(raw, architecture)
        rope = RopeConfig.from_config(raw)
        return cls(
            architecture=architecture,
            num_layers=raw["num_hidden_layers"],
            hidden_size=raw["hidden_size"],
            intermediate_size=raw["intermediate_size"],
            num_heads=num_heads,
            num_kv_heads=raw.get("num_key_value_heads") or num_heads,
            head_dim=raw.get("head_dim") or raw["hidden_size"] // num_heads,
            vocab_size=raw["vocab_size"],
            max_position=min(longest, window or longest),
            sliding_window=window,
            norm_eps=raw["rms_norm_eps"],
            rope=rope,
            rope_text=json.dumps(asdict(rope), sort_keys=True),
            tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
            qkv_bias=_QKV_BIAS_DEFAULT.get(architecture, attention_bias),
            o_bias=attention_bias,
            mlp_bias=bool(raw.get("mlp_bias", False)),
            qk_norm=architecture in _QK_NORM,
            eos_token_ids=eos_ids(raw, generation),
        )


def lean_config(folder: Path, impl: str) -> ModelConfig | None:
    """Return the config for the lean forward, or None where transformers is to run the model.

    Args:
        folder: of the model.
        impl: one of `engine.config.MODEL_IMPLS`; `auto`: lean wherever it computes the model.

    Raises:
        ModelLoadError: files that cannot be read, or `lean` was asked for and cannot be.
    """
    if impl == "transformers":
        return None
    try:
        return ModelConfig.from_folder(folder)
    except NotLeanError:
        if impl == "lean":
            raise
        return None


def _sliding_window(raw: Mapping[str, Any], architecture: str) -> int | None:
    """The window of the layers that have one. What config.json does not say is as transformers has it by default."""
    default = _DEFAULT_WINDOW if architecture in (*_QWEN, "MistralForCausalLM") else None
    window: int | None = raw.get("sliding_window", default)
    if architecture not in _QWEN:
        return window
    num_layers, first = raw["num_hidden_layers"], raw.get("max_window_layers", 28)
    layers = raw.get("layer_types") or ["full_attention"] * first + ["sliding_attention"] * num_layers
    return window if raw.get("use_sliding_window", False) and "sliding_attention" in layers[:num_layers] else None


def _refuse_unknown(raw: Mapping[str, Any]) -> None:
    """Refuse what would load and then compute something else."""
    architecture = (raw.get("architectures") or ["?"])[0]
    if architecture not in LEAN_ARCHITECTURES:
        raise NotLeanError(f"architecture: got {architecture!r}, wanted one of {', '.join(LEAN_ARCHITECTURES)}")
    if (activation := raw.get("hidden_act", "silu")) != "silu":
        raise NotLeanError(f"hidden_act: got {activation!r}, wanted 'silu'")
    if (part := raw.get("partial_rotary_factor", 1.0)) != 1.0:
        raise NotLeanError(f"partial_rotary_factor: got {part}, wanted 1")
    if raw.get("quantization_config"):
        raise NotLeanError("quantization_config: the lean forward takes no quantized checkpoints")


def eos_ids(*configs: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the end-of-sequence ids that any of these files gives."""
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
