"""config.json to ModelConfig: both spellings of RoPE, what is refused."""

from __future__ import annotations

import json
import math

import pytest

from engine.errors import ModelLoadError
from engine.model_config import ModelConfig
from engine.rope_config import RopeConfig

BASE = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
}


def read(tmp_path, generation=None, **changes):
    raw = {name: value for name, value in {**BASE, **changes}.items() if value is not ...}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    return ModelConfig.from_folder(tmp_path)


def test_defaults_follow_from_the_heads(tmp_path):
    config = read(tmp_path)
    assert (config.num_kv_heads, config.head_dim, config.rope) == (4, 16, RopeConfig(10_000.0))
    assert not any((config.qkv_bias, config.o_bias, config.mlp_bias, config.qk_norm, config.tied_embeddings))
    assert config.eos_token_ids == ()


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("changes", "rope"),
    [
        ({"rope_theta": 5e5}, RopeConfig(5e5)),
        ({"rope_theta": 5e5, "rope_scaling": None}, RopeConfig(5e5)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 77}}, RopeConfig(77.0)),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, RopeConfig(10_000.0, "linear", 2.0)),
        ({"rope_theta": 5e5, "rope_scaling": LLAMA3}, RopeConfig(5e5, "llama3", 8.0, 1.0, 4.0, 8192)),
        ({"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}, RopeConfig(5e5, "llama3", 8.0, 1.0, 4.0, 8192)),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}},
            RopeConfig(10_000.0, "yarn", 4.0, original_max_position=512, attention_factor=0.1 * math.log(4) + 1),
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "attention_factor": 0.5, "truncate": False}},
            RopeConfig(10_000.0, "yarn", 4.0, original_max_position=2048, attention_factor=0.5, truncate=False),
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": None, "mscale": 2, "mscale_all_dim": 1, "beta_fast": 16}}
            | {"original_max_position_embeddings": 1024},
            RopeConfig(
                10_000.0,
                "yarn",
                2.0,
                original_max_position=1024,
                beta_fast=16.0,
                attention_factor=(0.2 * math.log(2) + 1) / (0.1 * math.log(2) + 1),
            ),
        ),
    ],
)
def test_rope_is_read_in_both_spellings(changes, rope, tmp_path):
    assert read(tmp_path, **changes).rope == rope


def test_end_of_sequence_ids_are_those_of_both_files(tmp_path):
    assert read(tmp_path, generation={"eos_token_id": [7, 2]}, eos_token_id=2).eos_token_ids == (2, 7)


@pytest.mark.parametrize(
    ("architecture", "qkv", "o", "qk_norm"),
    [("Qwen2ForCausalLM", True, False, False), ("Qwen3ForCausalLM", False, False, True)],
)
def test_architecture_decides_biases_and_norms(architecture, qkv, o, qk_norm, tmp_path):
    config = read(tmp_path, architectures=[architecture])
    assert (config.qkv_bias, config.o_bias, config.qk_norm) == (qkv, o, qk_norm)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4}}, "got 'dynamic', whose angles change with the length"),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 4}}, "got 'spiral'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "'factor' is missing"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'factor' is missing"),
        ({"vocab_size": ...}, "'vocab_size' is missing"),
    ],
)
def test_what_the_forward_would_get_wrong_is_refused(changes, message, tmp_path):
    with pytest.raises(ModelLoadError, match=message):
        read(tmp_path, **changes)


@pytest.mark.parametrize(
    ("architecture", "changes", "max_position"),
    [
        ("Llama", {}, 2048),
        ("Mistral", {"sliding_window": None}, 2048),
        ("Mistral", {"sliding_window": 64}, 64),
        ("Mistral", {"max_position_embeddings": 9000}, 4096),
        ("Qwen2", {"sliding_window": 64}, 2048),
        ("Qwen2", {"sliding_window": 64, "use_sliding_window": True}, 2048),  # max_window_layers: more than there are
        ("Qwen3", {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 1}, 64),
        ("Qwen3", {"sliding_window": 64, "use_sliding_window": True, "layer_types": ["full_attention"] * 2}, 2048),
    ],
)
def test_a_sliding_window_bounds_sequences_where_a_layer_has_one(architecture, changes, max_position, tmp_path):
    config = read(tmp_path, architectures=[f"{architecture}ForCausalLM"], **changes)
    assert config.max_position == max_position


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_file_that_is_no_object_is_refused(text, tmp_path):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        ModelConfig.from_folder(tmp_path)
