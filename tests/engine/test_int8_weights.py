"""`--quantization int8`: the rotation changes nothing, int8 little, and a row's logits depend on no other row."""

from __future__ import annotations

import contextlib
import dataclasses
import json

import numpy as np
import pytest
import torch

from engine.batch import SchedulerOutput
from engine.commands.plan import main as plan_main
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.loader import Checkpoint, load_model
from engine.memory_plan import int8_weight_bytes
from engine.model_config import ModelConfig
from engine.models.llama import LlamaModel
from engine.rotation import RotatedWeights
from engine.weight_format import choose_quantization
from kernels.int8 import spread
from tests.engine.test_model_runner import VARIANTS, make_prompt, make_runner, schedule
from tests.engine.test_quality import run_quality, with_tokenizer
from tests.engine.tiny_model import reference_logits, save_tiny_model

pytestmark = pytest.mark.usefixtures("all_cores")

CPU = torch.device("cpu")


def int8_runs() -> bool:
    try:
        choose_quantization("int8", _config(), dtype="auto", device=CPU)
    except ConfigError:
        return False
    return True


def _config(**changes) -> ModelConfig:
    shape = {field.name: 1 for field in dataclasses.fields(ModelConfig)}
    return ModelConfig(**shape | {"head_dim": 64} | changes)


needs_int8 = pytest.mark.skipif(not int8_runs(), reason="this processor has no int8 products")


class UntiedWeights(RotatedWeights):
    """Rotated weights for a model that knows nothing of the rotation: the last norm becomes part of the LM head."""

    def take(self, name, *shape, change=None):
        if name == "model.embed_tokens.weight":
            self.embedding = self._inner.take(name, *shape)
            return spread(self.embedding)
        if name == "model.norm.weight":
            self.last_norm = self._inner.take(name, *shape)
            return torch.ones(shape)
        if name == "lm_head.weight":
            head = self.embedding if self.tied else self._inner.take(name, *shape)
            return spread(head * self.last_norm)
        return super().take(name, *shape, change=change)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_rotation_alone_leaves_the_logits_alone(tmp_path, variant, monkeypatch):
    kind, changes = VARIANTS[variant]
    folder = save_tiny_model(tmp_path, kind, **changes)
    config = ModelConfig.from_folder(folder)
    prompt = make_prompt(40)
    with contextlib.ExitStack() as stack:
        weights = UntiedWeights(Checkpoint(folder, stack, dtype=torch.float32, device=CPU), config)
        weights.tied = config.tied_embeddings
        rotated = LlamaModel(
            dataclasses.replace(config, tied_embeddings=False), weights, max_position=512, rotate_values=True
        )
    monkeypatch.setattr("engine.model_runner.load_model", lambda *_, **__: rotated)
    runner, sampler = make_runner(folder)
    runner.execute(SchedulerOutput([schedule("a", prompt, 0, 40, list(range(5)))]))
    torch.testing.assert_close(sampler.logits["a"], reference_logits(folder, prompt)[-1], rtol=0, atol=1e-4)


@needs_int8
@pytest.mark.parametrize("variant", VARIANTS)
def test_int8_is_close_to_fp32(tmp_path, variant):
    kind, changes = VARIANTS[variant]
    folder = save_tiny_model(tmp_path, kind, **changes)
    prompt = make_prompt(40)
    expected = reference_logits(folder, prompt)
    runner, sampler = make_runner(folder, quantization="int8")
    runner.execute(SchedulerOutput([schedule("a", prompt, 0, 40, list(range(5)))]))
    error = (sampler.logits["a"] - expected[-1]).square().mean().sqrt() / expected[-1].std()
    assert error < 0.1
    unrotated = (sampler.logits["a"] - expected[-2]).square().mean().sqrt() / expected[-1].std()
    assert unrotated > 0.5  # the bar tells two positions apart


@needs_int8
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_rows_logits_depend_on_no_other_row(tmp_path, dtype):
    """Cold, in chunks, as a hit and in a batch, but for attention that cuts a context in other pieces: up to 16 rows."""
    runner, sampler = make_runner(save_tiny_model(tmp_path), dtype=dtype, quantization="int8")
    prompt, others = make_prompt(9), [make_prompt(7, seed) for seed in range(1, 40)]
    runner.execute(SchedulerOutput([schedule("a", prompt, 0, 9, [0, 1])]))
    alone = sampler.logits["a"]
    runner.execute(SchedulerOutput([schedule("a", prompt, 0, 4, [2, 3]), schedule("b", others[0], 0, 7, [4])]))
    batch = [schedule(str(i), other, 0, 7, [5 + i]) for i, other in enumerate(others)]
    runner.execute(SchedulerOutput([*batch[:20], schedule("a", prompt, 4, 9, [2, 3]), *batch[20:]]))
    torch.testing.assert_close(sampler.logits["a"], alone, rtol=0, atol=1e-5)


@needs_int8
def test_chunks_that_sample_nothing(tmp_path):
    runner, sampler = make_runner(save_tiny_model(tmp_path), quantization="int8")
    prompt = make_prompt(20)
    output = runner.execute(SchedulerOutput([schedule("a", prompt, 0, 12, [0, 1, 2], sample=False)]))
    assert output.token_ids == {}
    runner.execute(SchedulerOutput([schedule("a", prompt, 12, 20, [0, 1, 2])]))
    assert sampler.logits["a"].isfinite().all()


@needs_int8
def test_weights_take_a_byte_each(tmp_path):
    folder = save_tiny_model(tmp_path, tie_word_embeddings=True)
    config = ModelConfig.from_folder(folder)
    model = load_model(folder, config, dtype=torch.float32, device=CPU, max_position=64, quantization="int8")
    layer = model._layers[0]
    weights = [layer.qkv, layer.o, layer.gate_up, layer.down]
    assert [packed.nbytes for packed, *_ in weights] == [160 * 48, 48 * 96, 160 * 48, 48 * 80]
    assert model._lm_head is model._embedding  # kept once
    products = [product for layer in model._layers for product in (layer.qkv, layer.o, layer.gate_up, layer.down)]
    kept = sum(array.nbytes for product in (*products, model._embedding) for array in product)
    assert int8_weight_bytes(config) == pytest.approx(kept, rel=0.02)  # but for norms, and a vocabulary in full panels


def test_auto_is_int8_only_where_it_is_fast_and_no_dtype_was_asked_for(monkeypatch):
    def choose(name, *, dtype="auto", device=CPU, **changes):
        return choose_quantization(name, _config(**changes), dtype=dtype, device=device)

    monkeypatch.setattr("engine.weight_format.cpu_has_int8", lambda: True)
    assert choose("auto") == choose("int8") == choose("int8", dtype="float32") == "int8"
    assert choose("none") == choose("auto", dtype="bfloat16") == "none"
    assert choose("auto", head_dim=24) == choose("auto", device=torch.device("cuda")) == "none"
    with pytest.raises(
        ConfigError,
        match="--quantization: got 'int8', but its kernels take heads of 16 to 256 channels in steps of 16, not 24",
    ):
        choose("int8", head_dim=24)
    with pytest.raises(ConfigError, match="not on cuda"):
        choose("int8", device=torch.device("cuda"))
    monkeypatch.setattr("engine.weight_format.cpu_has_int8", lambda: False)
    assert choose("auto") == "none"
    with pytest.raises(ConfigError, match="need a processor with avx512_vnni"):
        choose("int8")


def test_an_unknown_quantization_is_refused():
    with pytest.raises(ValueError, match="quantization: got 'int4', wanted one of"):
        EngineConfig(model_path="", quantization="int4")


@needs_int8
def test_quantized_keys_and_values_are_a_namespace_of_their_own(tmp_path):
    folder = save_tiny_model(tmp_path)
    plain, quantized = (make_runner(folder, quantization=name)[0] for name in ("none", "int8"))
    assert {
        name for name, value in quantized.namespace_fields().items() if value != plain.namespace_fields()[name]
    } == {"quantization"}
    assert np.all([runner.namespace_fields()["dtype"] == "float32" for runner in (plain, quantized)])


@needs_int8
def test_quality_has_rows_for_int8_weights(tmp_path):
    folder = with_tokenizer(save_tiny_model(tmp_path / "model", head_dim=32, initializer_range=0.1))
    formats = ["w8a8", "w8a8:int8/hadamard", "int4/per_token"]
    _, report = run_quality(folder, tmp_path, "--formats", ",".join(formats), "--questions", "0", "--needles", "0")
    kls = [report["formats"][name]["kl_mean"] for name in formats]
    assert 10 * report["noise_floor"]["kl_mean"] < kls[0] < kls[2]
    assert kls[0] != kls[1]
    assert set(report["gates"]) == set(formats[:2])


def test_plan_counts_int8_weights(tmp_path, capsys):
    folder = save_tiny_model(tmp_path, tie_word_embeddings=True)
    found = {}
    for name in ("none", "int8"):
        assert plan_main([str(folder), "--quantization", name, "--json"]) == 0
        found[name] = json.loads(capsys.readouterr().out)
    assert found["int8"]["weights_bytes"] == int8_weight_bytes(ModelConfig.from_folder(folder))
    assert found["int8"]["weights_bytes"] < found["none"]["weights_bytes"]
    assert found["int8"]["kv_bytes_total"] == found["none"]["kv_bytes_total"]
