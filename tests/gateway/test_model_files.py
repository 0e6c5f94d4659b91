from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.model_files import ModelFiles, ModelFilesError


def folder(path: Path, config: object = None, **files: str) -> Path:
    (path / "tokenizer.json").write_text("{}")
    if config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    for name, text in files.items():
        (path / name.replace("_jinja", ".jinja")).write_text(text)
    return path


def test_template_file_wins_over_the_one_in_the_config(tmp_path: Path) -> None:
    files = ModelFiles.from_folder(folder(tmp_path, {"chat_template": "old"}, chat_template_jinja="new"), "m")
    assert files.chat_template == "new"


def test_template_option_wins_over_all(tmp_path: Path) -> None:
    path = folder(tmp_path, {"chat_template": "old"}, chat_template_jinja="new", mine="mine")
    assert ModelFiles.from_folder(path, "m", tmp_path / "mine").chat_template == "mine"
    with pytest.raises(ModelFilesError, match="--chat-template"):
        ModelFiles.from_folder(path, "m", tmp_path / "missing")


def test_special_tokens_are_strings_or_objects(tmp_path: Path) -> None:
    config = {"chat_template": "t", "bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>"}
    files = ModelFiles.from_folder(folder(tmp_path, config), "m")
    assert (files.bos_token, files.eos_token) == ("<s>", "</s>")


def test_of_named_templates_the_default_one_is_taken(tmp_path: Path) -> None:
    named = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
    assert ModelFiles.from_folder(folder(tmp_path, {"chat_template": named}), "m").chat_template == "d"


@pytest.mark.parametrize("config", [None, {}, {"chat_template": None}, {"chat_template": []}])
def test_no_template_says_how_to_give_one(tmp_path: Path, config: object) -> None:
    with pytest.raises(ModelFilesError, match="--chat-template FILE"):
        ModelFiles.from_folder(folder(tmp_path, config), "m")


def test_no_tokenizer_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"tokenizer\.json"):
        ModelFiles.from_folder(tmp_path, "m")


def test_broken_config_names_the_file(tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelFilesError, match="not valid JSON"):
        ModelFiles.from_folder(tmp_path, "m")
