"""Names to folders, and whole folders from damaged ones."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from engine.errors import ModelNotFoundError
from engine.model_store import (
    MANIFEST,
    MANIFEST_FORMAT,
    ModelNotPulledError,
    ModelPath,
    default_model_dir,
    file_sha256,
    gguf_folder,
    is_whole,
    resolve,
    weight_digest,
)

ALIAS = "smollm2-135m-instruct"


def make_folder(folder, **manifest):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    names = ("config.json", "model.safetensors")
    files = {n: {"size": (folder / n).stat().st_size, "sha256": file_sha256(folder / n)} for n in names}
    content = {"format": MANIFEST_FORMAT, "weight_digest": "abc", "files": files} | manifest
    (folder / MANIFEST).write_text(json.dumps(content))
    return folder


def test_alias_resolves_to_its_whole_folder(tmp_path):
    folder = make_folder(tmp_path / ALIAS)
    found = resolve(ALIAS, tmp_path)
    assert (found.folder, found.name) == (folder, ALIAS)


def test_alias_that_is_not_pulled_says_what_to_run(tmp_path):
    with pytest.raises(ModelNotPulledError, match="not pulled yet: run `prefixgate models pull"):
        resolve(ALIAS, tmp_path)


@pytest.mark.parametrize(
    "damage", ["missing", "shorter", "altered", "no manifest", "half a manifest", "an empty manifest", "older format"]
)
def test_alias_with_a_damaged_folder_is_not_pulled(damage, tmp_path):
    folder = make_folder(tmp_path / ALIAS)
    match damage:
        case "missing":
            (folder / "model.safetensors").unlink()
        case "shorter":
            (folder / "model.safetensors").write_bytes(b"weigh")
        case "altered":
            (folder / "model.safetensors").write_bytes(b"Weights")
        case "an empty manifest":
            (folder / MANIFEST).write_text(json.dumps({"format": MANIFEST_FORMAT}))
        case "no manifest":
            (folder / MANIFEST).unlink()
        case "half a manifest":
            (folder / MANIFEST).write_text('{"format": 1, "files')
        case "older format":
            make_folder(folder, format=MANIFEST_FORMAT - 1)
    with pytest.raises(ModelNotPulledError, match="damaged"):
        resolve(ALIAS, tmp_path)


def test_is_whole_with_hashes_sees_altered_bytes(tmp_path):
    folder = make_folder(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"Weights")
    assert is_whole(folder)
    assert not is_whole(folder, hashes=True)


def test_local_folder_is_served_under_its_name(tmp_path, monkeypatch):
    make_folder(tmp_path / "my-model")
    monkeypatch.chdir(tmp_path)
    found = resolve("./my-model")
    assert (found.folder, found.name) == (tmp_path / "my-model", "my-model")


def test_local_folder_without_config_is_refused(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"holds no config\.json"):
        resolve(str(tmp_path))


def test_hub_id_is_looked_up_in_the_cache_first(tmp_path, monkeypatch):
    commit = "0" * 40
    repo = tmp_path / "models--owner--model"
    make_folder(repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    found = resolve("owner/model")
    assert (found.folder, found.name) == (repo / "snapshots" / commit, "owner/model")


def test_folder_of_a_hub_cache_is_its_snapshot_under_the_id(tmp_path):
    repo = tmp_path / "models--owner--my-model"
    make_folder(repo / "snapshots" / "abc")
    with pytest.raises(ModelNotFoundError, match=r"holds no config\.json"):
        resolve(str(repo))
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("abc\n")
    found = resolve(str(repo))
    assert (found.folder, found.name) == (repo / "snapshots" / "abc", "owner/my-model")


def test_gguf_file_has_a_folder_of_its_own_until_it_changes(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"1")
    with pytest.raises(ModelNotPulledError, match="not converted yet: run `prefixgate models pull"):
        resolve(str(path), tmp_path / "models")
    folder = make_folder(gguf_folder(path, tmp_path / "models"))
    assert resolve(str(path), tmp_path / "models") == ModelPath(folder, "tiny")
    path.write_bytes(b"22")
    with pytest.raises(ModelNotPulledError):
        resolve(str(path), tmp_path / "models")


def test_unknown_hub_id_says_what_was_tried(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFoundError, match=r"no alias \(smollm2.*tried the Hugging Face cache: .*; the hub: "):
        resolve("owner/nothing")


@pytest.mark.parametrize("name", ["smollm3", "./nowhere", "a/b/c", "../up", ""])
def test_other_names_are_not_found(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(name)
    assert not isinstance(caught.value, ModelNotPulledError)


def test_weight_digest_depends_on_weights_and_config_alone(tmp_path):
    folder = make_folder(tmp_path / "m")
    assert weight_digest(folder) == "abc"
    (folder / MANIFEST).unlink()
    digest = weight_digest(folder)
    (folder / "README.md").write_text("hello")
    assert weight_digest(folder) == digest
    (folder / "config.json").write_text('{"rope_theta": 5}')
    changed = weight_digest(folder)
    (folder / "model.safetensors").write_bytes(b"Weights")
    assert len({digest, changed, weight_digest(folder)}) == 3


def test_default_folder_is_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_model_dir().parts[-2:] == ("prefixgate", "models")


def test_import_loads_no_torch():
    code = "import sys, engine.model_store, engine.commands.models; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
