"""The same weights as a safetensors folder, in shards, in a hub cache and as a GGUF file give the same logits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from engine.batch import SchedulerOutput
from engine.commands import models
from engine.errors import EngineError
from engine.model_store import resolve
from tests.engine.test_model_runner import TOLERANCE, make_runner, schedule
from tests.engine.tiny_gguf import HEADS, HIDDEN, INNER, KV_HEADS, LAYERS, TOKENS, write_gguf, write_gguf_of
from tests.engine.tiny_model import reference_logits, save_tiny_model

PROMPT = [(37 * i) % 250 + 3 for i in range(60)]
COMMIT = "0123456789abcdef"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A plain folder, as transformers writes it."""
    return save_tiny_model(
        tmp_path_factory.mktemp("source"),
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        vocab_size=len(TOKENS),
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
    )


def in_shards(source: Path, folder: Path) -> str:
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    model.save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    return str(folder)


def in_hub_cache(source: Path, folder: Path) -> Path:
    """Blobs, and a snapshot of symlinks to them."""
    repo = folder / "models--owner--tiny"
    snapshot = repo / "snapshots" / COMMIT
    for made in (repo / "blobs", repo / "refs", snapshot):
        made.mkdir(parents=True)
    (repo / "refs" / "main").write_text(COMMIT)
    for index, path in enumerate(source.iterdir()):
        (repo / "blobs" / str(index)).write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(Path("../../blobs") / str(index))
    return repo


def logits_of(model: str, model_dir: Path) -> torch.Tensor:
    runner, sampler = make_runner(resolve(model, model_dir).folder)
    runner.execute(SchedulerOutput([schedule("a", PROMPT, 0, len(PROMPT), list(range(8)))]))
    return sampler.logits["a"]


def test_every_source_gives_the_same_logits(source, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    repo = in_hub_cache(source, tmp_path / "hub")
    gguf_path = write_gguf_of(load_file(source / "model.safetensors"), tmp_path / "tiny.gguf")
    assert models.main(["pull", str(gguf_path), "--model-dir", str(tmp_path / "models"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(resolve(str(gguf_path), tmp_path / "models").folder)

    expected = logits_of(str(source), tmp_path)
    torch.testing.assert_close(expected, reference_logits(source, PROMPT)[-1], rtol=0, atol=TOLERANCE)
    for model in (in_shards(source, tmp_path / "shards"), "owner/tiny", str(repo), str(gguf_path)):
        assert torch.equal(logits_of(model, tmp_path / "models"), expected), model


def test_a_gguf_file_is_converted_once_and_again_when_it_changed(tmp_path, capsys):
    path, model_dir = tmp_path / "tiny.gguf", tmp_path / "models"
    write_gguf(path)
    command = ["pull", str(path), "--model-dir", str(model_dir)]
    assert models.main(command) == 0
    folder = resolve(str(path), model_dir).folder
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert models.main(command) == 0
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    path.write_bytes(path.read_bytes() + b"\0" * 32)
    with pytest.raises(EngineError, match="not converted yet"):
        resolve(str(path), model_dir)
    path.write_bytes(b"GGUF, it says")
    capsys.readouterr()
    assert models.main(command) == 1
    assert "not a readable GGUF file" in capsys.readouterr().err
    assert not [each for each in model_dir.iterdir() if each.name.startswith("tiny") and each != folder]
