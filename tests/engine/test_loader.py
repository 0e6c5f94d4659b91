"""Safetensors folders: whole, sharded, and wrong in every way that must be told."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ConfigError, ModelLoadError
from engine.loader import _cpu_has_bfloat16, choose_device, choose_dtype, load_model
from engine.model_config import ModelConfig
from tests.engine.tiny_model import save_tiny_model

CPU = torch.device("cpu")


def load(folder):
    config = ModelConfig.from_folder(folder)
    return load_model(folder, config, dtype=torch.float32, device=CPU, max_position=64)


def edit_weights(folder, edit):
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_shards_give_the_same_model_as_one_file(tmp_path):
    whole = load(save_tiny_model(tmp_path / "whole"))
    folder = save_tiny_model(tmp_path / "sharded")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, held in shards.items():
        save_file({name: weights[name] for name in held}, folder / file)
    weight_map = {name: file for file, held in shards.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    sharded = load(folder)
    assert torch.equal(sharded._embedding, whole._embedding)
    assert torch.equal(sharded._layers[2].mlp_norm, whole._layers[2].mlp_norm)
    (folder / "b.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"b\.safetensors is missing"):
        load(folder)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda w: w.pop("model.layers.1.mlp.up_proj.weight"), r"'model\.layers\.1\.mlp\.up_proj\.weight' is missing"),
        (lambda w: w.update({"model.norm.weight": torch.ones(7)}), r"'model\.norm\.weight': got \[7\], wanted \[48\]"),
        (
            lambda w: w.update({f"model.layers.0.extra{i}": torch.ones(1) for i in range(5)}),
            r"no place for weights .*extra.* and 2 more",
        ),
    ],
    ids=["missing", "shape", "unexpected"],
)
def test_weights_other_than_the_configs_are_refused(edit, message, tmp_path):
    folder = save_tiny_model(tmp_path)
    edit_weights(folder, edit)
    with pytest.raises(ModelLoadError, match=message):
        load(folder)


def test_weights_nobody_needs_are_let_be(tmp_path):
    folder = save_tiny_model(tmp_path, tie_word_embeddings=True)
    edit_weights(folder, lambda w: w.update({"lm_head.weight": torch.ones(1), "x.rotary_emb.inv_freq": torch.ones(1)}))
    assert load(folder).config.tied_embeddings


def test_unknown_architecture_is_refused(tmp_path):
    folder = save_tiny_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["FalconForCausalLM"]}))
    with pytest.raises(ModelLoadError, match="architecture: got 'FalconForCausalLM', wanted one of Llama"):
        load(folder)


@pytest.mark.parametrize("content", [None, b"garbage"], ids=["missing", "garbage"])
def test_weights_that_cannot_be_read_are_refused(content, tmp_path):
    folder = save_tiny_model(tmp_path)
    (folder / "model.safetensors").unlink()
    if content:
        (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"safetensors is missing|cannot be read"):
        load(folder)


def test_an_index_without_a_weight_map_is_refused(tmp_path):
    folder = save_tiny_model(tmp_path)
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="not a safetensors index"):
        load(folder)


def test_choose_dtype_takes_the_named_one_and_bfloat16_where_it_is_fast(tmp_path):
    assert choose_dtype("float16", CPU) == torch.float16
    assert choose_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert choose_dtype("auto", CPU) == (torch.bfloat16 if _cpu_has_bfloat16() else torch.float32)
    cpuinfo = tmp_path / "cpuinfo"
    for flags, fast in (("fpu avx2 avx512f", False), ("fpu avx512_bf16", True), ("amx_bf16 fpu", True)):
        cpuinfo.write_text(f"model name: x\nflags: {flags}\n")
        assert _cpu_has_bfloat16(cpuinfo) is fast
    assert not _cpu_has_bfloat16(tmp_path / "none")


def test_choose_device_refuses_what_is_not_there():
    assert choose_device("cpu") == CPU
    assert choose_device("auto").type in ("cpu", "cuda")
    with pytest.raises(ConfigError, match="device: got 'tpu9'"):
        choose_device("tpu9")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="offers no CUDA device"):
            choose_device("cuda")
