"""A model folder without a model: a small byte-level tokenizer and a ChatML-like template."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from gateway.model_files import ModelFiles

SPECIAL_TOKENS = ["<|end|>", "<|turn|>", "<|stop|>"]
"""Ids 0, 1 and 2. The first ends a generation."""
EOS_ID = 0
MODEL_NAME = "tiny"

TEMPLATE = """\
{% for message in messages %}<|turn|>{{ message['role'] }}
{{ message['content'] }}<|stop|>
{% endfor %}{% if add_generation_prompt %}<|turn|>assistant
{% endif %}"""

TOOL_TEMPLATE = (
    """\
{% if tools %}<|turn|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|stop|>
{% endif %}"""
    + TEMPLATE
)

_CORPUS = [
    "the quick brown fox jumps over the lazy dog and says hello to the world",
    "you are a helpful assistant that answers every question in one short sentence",
    "system user assistant tool developer",
]


def write_model(folder: Path, *, template: str = TEMPLATE) -> ModelFiles:
    """Write the files and read them back."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": {"content": "<|turn|>"}, "eos_token": "<|end|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return ModelFiles.from_folder(folder, MODEL_NAME)


def write_opening_model(folder: Path) -> ModelFiles:
    """The same with a tokenizer that puts a token before each text."""
    tokenizer = Tokenizer.from_file(str(write_model(folder).tokenizer_file))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|turn|> $A", special_tokens=[("<|turn|>", SPECIAL_TOKENS.index("<|turn|>"))]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return ModelFiles.from_folder(folder, MODEL_NAME)
