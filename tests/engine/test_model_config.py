"""config.json to ModelConfig: both spellings of RoPE, what is refused."""

from __future__ import annotations

import json

import pytest

from engine.errors import ModelLoadError
from engine.model_config import ModelConfig, RopeConfig

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
        ({"sliding_window": 1024}, "sliding_window: got 1024"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "got 'yarn'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'factor' is missing"),
        ({"vocab_size": ...}, "'vocab_size' is missing"),
    ],
)
def test_what_the_forward_would_get_wrong_is_refused(changes, message, tmp_path):
    with pytest.raises(ModelLoadError, match=message):
        read(tmp_path, **changes)


@pytest.mark.parametrize("changes", [{"use_sliding_window": False, "sliding_window": 64}, {"sliding_window": 2048}])
def test_a_window_that_never_acts_is_accepted(changes, tmp_path):
    assert read(tmp_path, **changes).max_position == 2048


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_file_that_is_no_object_is_refused(text, tmp_path):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        ModelConfig.from_folder(tmp_path)
