"""The files of a model that the HTTP side reads: tokenizer, chat template, names of the special tokens.

Reads Hugging Face style folders. Knows nothing of weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson


class ModelFilesError(Exception):
    """A file is missing, or does not hold what it should."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What serving a model takes besides its weights."""

    name: str
    """The id under which clients ask for it."""
    folder: Path
    tokenizer_file: Path
    """tokenizer.json, as the tokenizers library reads it."""
    chat_template: str
    """Jinja source."""
    bos_token: str = ""
    eos_token: str = ""
    response_template: Any = None
    """How to read what the model writes, for transformers' parser; None: the tokenizer does not say."""

    @classmethod
    def from_folder(cls, folder: Path, name: str, chat_template_override: Path | None = None) -> ModelFiles:
        """Find the files in a folder.

        Args:
            folder: holds tokenizer.json and, mostly, tokenizer_config.json.
            name: the served model id.
            chat_template_override: a file whose template is used in place of the folder's.

        Raises: ModelFilesError: which file or key is missing.
        """
        tokenizer_file = folder / "tokenizer.json"
        if not tokenizer_file.is_file():
            raise ModelFilesError(f"{tokenizer_file}: missing, wanted the model's tokenizer")
        config = _read_config(folder / "tokenizer_config.json")
        return cls(
            name=name,
            folder=folder,
            tokenizer_file=tokenizer_file,
            chat_template=_chat_template(folder, config, chat_template_override),
            bos_token=_token_text(config.get("bos_token")),
            eos_token=_token_text(config.get("eos_token")),
            response_template=config.get("response_template"),
        )


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ModelFilesError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelFilesError(f"{path}: got a {type(config).__name__}, wanted an object")
    return config


def _chat_template(folder: Path, config: dict[str, Any], override: Path | None) -> str:
    path = override or folder / "chat_template.jinja"
    if override is not None or path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFilesError(f"--chat-template: cannot read {path}: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list):  # several named ones
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if not isinstance(template, str):
        raise ModelFilesError(f"{folder}: has no chat template; give one with --chat-template FILE")
    return template


def _token_text(value: object) -> str:
    """Read a special token, which is a string or an object with its text in `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""
