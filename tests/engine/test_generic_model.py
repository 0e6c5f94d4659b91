"""Models without a lean forward, through the modules of transformers over the paged cache."""

from __future__ import annotations

import pytest
import torch

from engine.batch import SchedulerOutput
from engine.config import CacheConfig, EngineConfig
from engine.errors import ModelLoadError
from engine.model_config import ModelShape
from engine.model_runner import ModelRunner
from engine.models.generic import GenericModel
from engine.models.self_check import check_against
from tests.engine.test_model_runner import TOLERANCE, RecordingSampler, make_prompt, schedule
from tests.engine.tiny_model import reference_logits, save_tiny_model

ARCHITECTURES = {
    "gpt_neox": {"hidden_size": 96, "num_key_value_heads": ..., "head_dim": ...},  # parallel residual, partial RoPE
    "gpt2": {"n_embd": 96, "n_layer": 3, "n_head": 6, "n_positions": 512},  # learned positions, no RoPE
    "gemma": {},  # embeddings scaled, norms of 1 + weight
    "gemma2": {"attn_logit_softcapping": None, "sliding_window": 200, "query_pre_attn_scalar": 40},
    "phi": {"hidden_size": 96, "partial_rotary_factor": 0.5, "head_dim": ...},  # no gate, parallel, partial RoPE
    "phi3": {"hidden_size": 96, "head_dim": ..., "sliding_window": 150},  # fused projections
    "olmo2": {"hidden_size": 96, "head_dim": ...},  # norms after, over all heads of q and k
    "stablelm": {"hidden_size": 96, "partial_rotary_factor": 0.25, "head_dim": ...},
    "granite": {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0},
    "cohere": {"hidden_size": 96, "head_dim": ..., "logit_scale": 0.5},
    "smollm3": {"no_rope_layer_interval": 2},
    "mixtral": {"num_local_experts": 4, "sliding_window": None},
}


def make_runner(folder, *, kind: str = "auto", impl: str = "auto", dtype: str = "float32"):
    sampler = RecordingSampler()
    cache = CacheConfig(block_size=8, num_blocks=64, kv_cache_dtype=kind, kv_skip_layers="none")
    config = EngineConfig(model_path=str(folder), model_impl=impl, dtype=dtype, device="cpu", cache=cache)
    return ModelRunner(config, sampler=sampler), sampler


def run_in_chunks(runner, sampler, prompt, sizes=(1, 7, 8, 9, 1, 64, 59, 1)):
    """Yield (number of tokens, logits after them)."""
    start = 0
    for size in sizes:
        output = runner.execute(SchedulerOutput([schedule("a", prompt, start, start + size, list(range(5, 24)))]))
        assert output.failed == {}
        start += size
        yield start, sampler.logits["a"]


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_logits_in_chunks_are_those_of_transformers(kind, tmp_path):
    prompt = make_prompt(150)
    expected = reference_logits(save_tiny_model(tmp_path, kind, **ARCHITECTURES[kind]), prompt)
    runner, sampler = make_runner(tmp_path)
    assert isinstance(runner._model, GenericModel)
    for num_tokens, logits in run_in_chunks(runner, sampler, prompt):
        torch.testing.assert_close(logits, expected[num_tokens - 1], rtol=0, atol=TOLERANCE)


def test_lean_and_generic_agree_and_the_option_chooses(tmp_path):
    prompt = make_prompt(150)
    save_tiny_model(tmp_path, "qwen3")
    runs = {impl: make_runner(tmp_path, impl=impl) for impl in ("auto", "lean", "transformers")}
    logits = {impl: dict(run_in_chunks(*run, prompt)) for impl, run in runs.items()}
    assert [isinstance(runner._model, GenericModel) for runner, _ in runs.values()] == [False, False, True]
    assert any("runs in the modules of transformers" in warning for warning in runs["transformers"][0].warnings)
    for num_tokens, expected in logits["lean"].items():
        torch.testing.assert_close(logits["transformers"][num_tokens], expected, rtol=0, atol=TOLERANCE)
    lean, generic = (runs[impl][0].model_config for impl in ("lean", "transformers"))
    assert all(getattr(lean, name) == getattr(generic, name) for name in ModelShape.__slots__ if name != "rope_text")


def test_a_llama_that_the_lean_forward_does_not_know_runs_in_transformers(tmp_path):
    prompt = make_prompt(40)
    expected = reference_logits(save_tiny_model(tmp_path, hidden_act="gelu"), prompt)
    runner, sampler = make_runner(tmp_path)
    for num_tokens, logits in run_in_chunks(runner, sampler, prompt, sizes=(30, 10)):
        torch.testing.assert_close(logits, expected[num_tokens - 1], rtol=0, atol=TOLERANCE)
    with pytest.raises(ModelLoadError, match="hidden_act: got 'gelu'"):
        make_runner(tmp_path, impl="lean")


@pytest.mark.parametrize("kind", ["int8/hadamard", "int8/per_token"])
def test_an_int8_cache_gives_what_it_gives_the_lean_forward(kind, tmp_path):
    prompt = make_prompt(150)
    expected = reference_logits(save_tiny_model(tmp_path, "qwen2"), prompt)
    errors = []
    for impl in ("lean", "transformers"):
        runner, sampler = make_runner(tmp_path, kind=kind, impl=impl)
        got = dict(run_in_chunks(runner, sampler, prompt))
        errors.append(
            max(float((logits - expected[n - 1]).norm() / expected[n - 1].norm()) for n, logits in got.items())
        )
    assert 0 < errors[1] < 1.5 * errors[0] < 0.1


def test_bfloat16_stays_near_float32(tmp_path):
    prompt = make_prompt(40)
    expected = reference_logits(save_tiny_model(tmp_path, "olmo2", **ARCHITECTURES["olmo2"]), prompt)[-1]
    runner, sampler = make_runner(tmp_path, dtype="bfloat16")
    *_, (_, logits) = run_in_chunks(runner, sampler, prompt, sizes=(30, 10))
    assert logits.dtype == torch.float32
    assert 0 < (logits - expected).norm() < 0.05 * expected.norm()


def test_a_window_bounds_max_model_len(tmp_path):
    runner, _ = make_runner(save_tiny_model(tmp_path, "phi3", **ARCHITECTURES["phi3"]))
    assert runner.max_model_len == 150
    assert any("sliding window" in warning for warning in runner.warnings)


MLA = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 24}


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("gemma2", {}, r"caps its attention scores \(softcap\)"),
        ("gpt_oss", {"num_local_experts": 4}, "has attention sinks"),
        (
            "deepseek_v3",
            MLA | {"head_dim": ..., "num_key_value_heads": 6, "first_k_dense_replace": 3},
            "wants them alike",
        ),
        ("llama", {"hidden_act": "gelu", "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "got 'dynamic'"),
        ("llama4_text", {"num_local_experts": 2, "intermediate_size_mlp": 80}, "chunked_attention"),
        ("mamba", {"head_dim": ...}, "linear_attention"),
        ("bloom", {"head_dim": ...}, "takes no position_ids"),
        ("falcon", {"head_dim": ..., "hidden_size": 96}, "only .* keep keys and values|cannot load it"),
        ("qwen3_next", {"num_experts": 4}, "linear_attention"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_what_the_kernels_cannot_do_is_refused_by_name(kind, changes, message, tmp_path):
    save_tiny_model(tmp_path, kind, **changes)
    with pytest.raises(ModelLoadError, match=message):
        make_runner(tmp_path)


def test_a_folder_that_transformers_does_not_know_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"architectures": ["Own"], "model_type": "own", "auto_map": {"AutoConfig": "x.Y"}}'
    )
    with pytest.raises(ModelLoadError, match="transformers cannot load it"):
        make_runner(tmp_path)


def test_a_model_that_answers_otherwise_over_the_cache_is_refused(tmp_path):
    save_tiny_model(tmp_path, "olmo2", **ARCHITECTURES["olmo2"])
    model = make_runner(tmp_path)[0]._model
    with pytest.raises(ModelLoadError, match="logits over the paged cache are not those it has by itself"):
        check_against(
            model,
            lambda ids: torch.randn(len(ids), 97),
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
