"""The engine over int8 caches: answers near the unquantized ones, layers that are skipped, rows that cannot be stored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.batch import SchedulerOutput
from engine.config import CacheConfig, EngineConfig
from engine.errors import ConfigError
from engine.model_runner import ModelRunner, choose_backend
from kernels.quant import SERVED_FORMATS
from tests.engine.test_model_runner import RecordingSampler, make_prompt, schedule
from tests.engine.tiny_model import reference_logits, save_tiny_model

INT8 = [name for name in SERVED_FORMATS if name != "auto"]
BIASED_LAYER = 1


def make_runner(folder: Path, kind: str, *, skip: str = "none", dtype: str = "float32"):
    sampler = RecordingSampler()
    cache = CacheConfig(block_size=8, num_blocks=64, kv_cache_dtype=kind, kv_skip_layers=skip)
    config = EngineConfig(model_path=str(folder), dtype=dtype, device="cpu", cache=cache)
    return ModelRunner(config, sampler=sampler), sampler


def last_logits(folder: Path, kind: str, prompt: list[int], *, skip: str = "none", chunks=(1, 7, 20, 1)):
    """Logits after the prompt, computed in chunks, the rest in one."""
    runner, sampler = make_runner(folder, kind, skip=skip)
    blocks = list(range(2, 2 + len(prompt) // 8 + 1))
    start = 0
    for size in (*chunks, len(prompt) - sum(chunks)):
        output = runner.execute(SchedulerOutput([schedule("a", prompt, start, start + size, blocks)]))
        assert output.failed == {}
        start += size
    return sampler.logits["a"], runner


def kl(expected: torch.Tensor, got: torch.Tensor) -> float:
    expected, got = expected.log_softmax(-1), got.log_softmax(-1)
    return float((expected.exp() * (expected - got)).sum())


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), head_dim=32, num_hidden_layers=3, initializer_range=0.1)


def add_key_bias(folder: Path) -> Path:
    """Like Qwen2: the key bias of one layer is huge in a few channels, of high and low frequencies."""
    weights = load_file(folder / "model.safetensors")
    prefix = f"model.layers.{BIASED_LAYER}.self_attn."
    weights[f"{prefix}k_proj.bias"].view(2, 64)[:, [1, 6, 29, 31]] = torch.tensor([300.0, -250.0, 350.0, -300.0])
    weights[f"{prefix}q_proj.weight"] *= 8  # attention that listens
    weights[f"{prefix}o_proj.weight"] *= 12  # and is heard
    weights["lm_head.weight"] *= 2  # by a model that has opinions
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def biased(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("biased")
    return add_key_bias(save_tiny_model(folder, "qwen2", head_dim=64, initializer_range=0.1))


@pytest.mark.parametrize("kind", INT8)
@pytest.mark.parametrize("skip", ["none", "0,2"])
def test_int8_stays_near_the_unquantized_cache(kind, skip, tiny):
    prompt = make_prompt(150)
    got, runner = last_logits(tiny, kind, prompt, skip=skip)
    expected = reference_logits(tiny, prompt)[-1]
    assert 0 < kl(expected, got) < 1e-3
    assert runner.kv_layout.num_quantized_layers == (3 if skip == "none" else 1)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_folded_rotation_changes_nothing_but_roundings(kind, tmp_path):
    # all layers skipped: what is left of the format is the rotation of values, folded into weights and biases
    folder = save_tiny_model(tmp_path, kind, **({"attention_bias": True} if kind == "llama" else {}))
    prompt = make_prompt(60)
    got, _ = last_logits(folder, "int8/hadamard", prompt, skip="first:3")
    torch.testing.assert_close(got, reference_logits(folder, prompt)[-1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", INT8)
def test_int8_logits_do_not_depend_on_chunks(kind, tiny):
    prompt = make_prompt(90)
    whole, _ = last_logits(tiny, kind, prompt, chunks=())
    parts, _ = last_logits(tiny, kind, prompt, chunks=(1, 8, 3, 40, 1))
    assert kl(whole, parts) < 1e-4


def test_key_bias_breaks_plain_int8_and_auto_rescues_it(biased):
    prompt = make_prompt(200)
    expected = reference_logits(biased, prompt)[-1]
    plain, _ = last_logits(biased, "int8/per_token", prompt)
    rescued, runner = last_logits(biased, "int8/per_token", prompt, skip="auto")
    assert runner.kv_layout.skipped_layers == {BIASED_LAYER}
    assert kl(expected, plain) > 0.01
    assert kl(expected, rescued) < 0.001
    assert any(f"layer {BIASED_LAYER} (" in w and "stay in float32" in w for w in runner.warnings)


def test_auto_skips_nothing_where_nothing_stands_out(tiny):
    runner, _ = make_runner(tiny, "int8/per_token", skip="auto")
    assert runner.kv_layout.skipped_layers == frozenset()
    assert not any("outliers" in warning for warning in runner.warnings)


def test_bfloat16_with_skipped_layers_runs(tiny):
    runner, sampler = make_runner(tiny, "int8/hadamard", skip="first:1", dtype="bfloat16")
    prompt = make_prompt(40)
    for start, end in ((0, 20), (20, 39), (39, 40)):
        runner.execute(SchedulerOutput([schedule("a", prompt, start, end, [0, 1, 2, 3, 4])]))
    expected = reference_logits(tiny, prompt)[-1]
    assert (sampler.logits["a"] - expected).norm() < 0.05 * expected.norm()


def test_a_row_that_cannot_be_stored_fails_its_request_alone(tmp_path):
    folder = save_tiny_model(tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][2] = torch.inf
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    runner, _ = make_runner(folder, "int8/per_token", skip="last:1")
    steps = [
        schedule("prefilling", [4, 2, 5, 6, 7], 0, 4, [1], sample=False),
        schedule("good", make_prompt(9), 0, 9, [2, 3]),
    ]
    output = runner.execute(SchedulerOutput(steps))
    assert output.failed == {"prefilling": "the model gave a key or value that is not finite"}
    assert set(output.token_ids) == {"good"}


def test_namespace_tells_formats_and_skipped_layers_apart(tiny):
    found = [
        json.dumps(make_runner(tiny, kind, skip=skip)[0].namespace_fields(), sort_keys=True)
        for kind, skip in (
            ("auto", "none"),
            ("int8/per_token", "none"),
            ("int8/hadamard", "none"),
            ("int8/hadamard", "0"),
        )
    ]
    assert len(set(found)) == 4
    # skipping is nothing to an unquantized cache, and a list means what its layers are
    assert make_runner(tiny, "auto", skip="0")[0].namespace_fields() == json.loads(found[0])
    assert make_runner(tiny, "int8/hadamard", skip="first:1")[0].namespace_fields() == json.loads(found[3])


def test_a_layer_to_skip_that_the_model_does_not_have_is_refused(tiny):
    with pytest.raises(ConfigError, match=r"--kv-skip-layers: .*the model has 3 layers"):
        make_runner(tiny, "int8/per_token", skip="3")


def test_a_group_that_does_not_divide_a_head_is_refused(tmp_path):
    folder = save_tiny_model(tmp_path, head_dim=48)
    with pytest.raises(ConfigError, match="does not divide a head of 48"):
        make_runner(folder, "int8/per_group_32")


def test_backend_follows_the_device_and_the_heads():
    assert choose_backend(torch.device("cuda"), 64, per_channel=True) == "triton"
    assert choose_backend(torch.device("cpu"), 64) == "numba"
    assert choose_backend(torch.device("cpu"), 64, per_channel=True) == "torch"
    assert choose_backend(torch.device("cpu"), 24) == "torch"
    assert choose_backend(torch.device("cpu"), 272) == "torch"
