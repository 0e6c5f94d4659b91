from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models, normalizers, pre_tokenizers

from gateway.model_files import ModelFiles
from gateway.token_bound import TokenBound, token_bound
from gateway.tokenizer import Tokenizer

BYTES = pre_tokenizers.ByteLevel.alphabet()


def spec(
    *, vocab: list[str] | None = None, normalizer: Any = None, pre_tokenizer: Any = None, **model: Any
) -> dict[str, Any]:
    tokens = {text: index for index, text in enumerate(vocab or [*BYTES, "abc"])}
    tokenizer = RawTokenizer(models.BPE(vocab=tokens, merges=[], **model))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    return dict(json.loads(tokenizer.to_str()))


SPELLED = [f"<0x{byte:02X}>" for byte in range(256)]
PLAIN = pre_tokenizers.Digits()


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        (spec(), 3),
        (spec(normalizer=normalizers.NFC()), 12),
        (spec(normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])), 3),
        (spec(pre_tokenizer=pre_tokenizers.Sequence([PLAIN, pre_tokenizers.ByteLevel()])), 3),
        (spec(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.ByteLevel()])), 3),
        (spec(vocab=SPELLED, byte_fallback=True, pre_tokenizer=PLAIN), 6),
        (spec(vocab=SPELLED[1:], byte_fallback=True, pre_tokenizer=PLAIN), None),
        (spec(vocab=SPELLED, pre_tokenizer=PLAIN), None),
        (spec(vocab=["a"]), None),
        (spec(normalizer=normalizers.Strip()), None),
        (spec(normalizer=normalizers.Replace("  ", "")), None),
        (spec(normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.NFKC()])), None),
        (spec(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()])), None),
        (spec(pre_tokenizer=pre_tokenizers.Whitespace()), None),
        ({**spec(), "added_tokens": [{"content": "<long>", "lstrip": False, "rstrip": False}]}, 6),
        ({**spec(), "added_tokens": [{"content": "<long>", "lstrip": False, "rstrip": True}]}, None),
        ({"model": {"type": "WordPiece", "vocab": {"a": 0}}}, None),
    ],
)  # fmt: skip
def test_bound_is_the_longest_token_where_no_text_is_free(given: dict[str, Any], bound: int | None) -> None:
    found = token_bound(given)
    assert (found and found.max_chars) == bound
    assert not (found and found.dropped)


def test_characters_without_a_token_do_not_count() -> None:
    lacks_ascii_and_leads = [char for char in BYTES if char not in ("a", "\u0106", "\u00ff")]
    bound = token_bound(spec(vocab=lacks_ascii_and_leads))
    assert bound == TokenBound(1, "a\x06") or bound == TokenBound(1, "\x06a")
    assert bound.num_chars("aab\x06") == 1
    lacks_a_later_byte = [char for char in BYTES if char != "\u0122"]
    assert token_bound(spec(vocab=lacks_a_later_byte)) is None


@given(st.text() | st.text("the quick assistant<|>", max_size=200))
def test_no_text_has_more_characters_than_its_tokens_allow(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.bound is not None
    assert tokenizer.bound.num_chars(text) <= len(tokenizer.encode(text)) * tokenizer.bound.max_chars


@given(st.text() | st.text("the\x06\x04\xf1\U00040000 quick", max_size=200))
def test_no_text_has_more_characters_where_the_vocabulary_lacks_bytes(poor_tokenizer: Tokenizer, text: str) -> None:
    assert poor_tokenizer.bound is not None
    assert set(poor_tokenizer.bound.dropped) == {"\x04", "\x06"}
    assert poor_tokenizer.bound.num_chars(text) <= len(poor_tokenizer.encode(text)) * poor_tokenizer.bound.max_chars


@pytest.fixture(scope="module")
def poor_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("poor") / "tokenizer.json"
    vocab = [char for char in BYTES if char not in ("\u0104", "\u0106", "\u00f1")]
    path.write_text(json.dumps(spec(vocab=vocab)))
    return Tokenizer(path)


def test_tokenizer_finds_its_bound(model_files: ModelFiles, tmp_path: Path) -> None:
    form = json.loads(model_files.tokenizer_file.read_bytes())
    assert Tokenizer(model_files.tokenizer_file).bound == TokenBound(max(map(len, form["model"]["vocab"])))
    form["normalizer"] = {"type": "Lowercase"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(form))
    assert Tokenizer(tmp_path / "tokenizer.json").bound is None
