"""The text that is predicted, as tokens, and the model's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError

_MIN_WINDOW = 32


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens of a file."""

    token_ids: Sequence[int]
    _tokenizer: Any

    @classmethod
    def read(cls, path: Path, model_folder: Path) -> Text:
        """Read a file with the tokenizer of a model folder.

        Raises:
            OSError: the file cannot be read.
            ModelLoadError: the folder has no tokenizer that transformers can load.
        """
        from transformers import AutoTokenizer

        text = path.read_text(encoding="utf-8")
        try:
            tokenizer = AutoTokenizer.from_pretrained(model_folder)
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"{model_folder}: no tokenizer can be loaded ({error})") from error
        return cls(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], tokenizer)

    def windows(self, length: int, num_tokens: int) -> list[Sequence[int]]:
        """Cut the first `num_tokens` tokens into texts of `length`; a short rest is dropped.

        Raises: ValueError: there is not one text of some length.
        """
        limit = min(num_tokens, len(self.token_ids))
        cut = [self.token_ids[start : min(start + length, limit)] for start in range(0, limit, length)]
        windows = [window for window in cut if len(window) >= min(length, _MIN_WINDOW)]
        if not windows:
            raise ValueError(f"text: got {limit} tokens, wanted more than {_MIN_WINDOW}")
        return windows

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special ones."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode_chat(self, message: str) -> list[int]:
        """Return the prompt of a user's message: by the model's chat template, where it has one."""
        if self._tokenizer.chat_template is None:
            return self.encode(message)
        messages = [{"role": "user", "content": message}]
        rendered = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return self.encode(rendered)

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of tokens."""
        return str(self._tokenizer.decode(token_ids))
