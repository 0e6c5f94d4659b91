from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, models, pre_tokenizers, processors
from tokenizers import Tokenizer as RawTokenizer

from gateway.pieces import PieceEncoder
from gateway.token_borders import Borders, find_borders
from gateway.token_memo import KnownPiece, TokenMemo
from gateway.tokenizer import Tokenizer
from tests.gateway.support.templates import write_tokenizer

TEMPLATE = "<|a|>{{ x }}<|b|>"


class CountingTokenizer(Tokenizer):
    def __init__(self, path: Path) -> None:
        self.encoded: list[list[str]] = []
        super().__init__(path)

    def encode_all(self, texts: list[str]) -> list[np.ndarray]:
        self.encoded.append(texts)
        return super().encode_all(texts)


@pytest.fixture
def tokenizer(tmp_path: Path) -> CountingTokenizer:
    return CountingTokenizer(write_tokenizer(tmp_path / "t.json", "bytes", special_tokens=["<|a|>", "<|b|>", "<|c|>"]))


def encoder(tokenizer: Tokenizer, memo: TokenMemo | None = None) -> PieceEncoder:
    return PieceEncoder(tokenizer, find_borders(tokenizer, [TEMPLATE]), memo or TokenMemo())


def ids(pieces: list) -> list[int]:
    return [int(token) for piece in pieces for token in piece.token_ids]


def test_a_piece_is_encoded_once_for_each_tenant(tokenizer: CountingTokenizer) -> None:
    pieces = encoder(tokenizer)
    tokenizer.encoded.clear()
    for tenant, expected in (
        ("x", [["<|a|>hi"]]),
        ("x", [[]]),
        ("y", [["<|a|>hi"]]),
        (None, [["<|a|>hi"]]),
        (None, [["<|a|>hi"]]),
    ):
        pieces.encode("<|a|>hi<|b|><|a|>hi", {}, tenant=tenant)
        assert tokenizer.encoded == expected
        tokenizer.encoded.clear()


def test_literals_that_come_many_times_are_encoded_once(tokenizer: CountingTokenizer) -> None:
    pieces = encoder(tokenizer)
    tokenizer.encoded.clear()
    text = "<|a|>" + "Mx" * 5000 + "Nxy<|b|>"
    found = pieces.encode(text, {"M": "<|b|>", "N": "<|c|>"}, tenant="")
    assert len(tokenizer.encoded) == 1
    assert sorted(tokenizer.encoded[0]) == ["<|a|>x", "<|a|>xy"]
    assert tokenizer.decode(ids(found)) == "<|a|>" + "<|b|>x" * 5000 + "<|c|>xy<|b|>"
    assert ids(found).count(1) == 1
    assert 2 not in ids(found)


def test_memo_forgets_what_was_not_used_for_longest_and_never_holds_more_than_it_may() -> None:
    memo = TokenMemo(max_bytes=20_000)
    piece = KnownPiece(np.arange(10, dtype=np.int32))
    for index in range(100):
        memo.put(("t", index), piece, 100)
        assert memo.get(("t", 0)) is piece
        assert memo.num_bytes <= 20_000
    assert memo.get(("t", 1)) is None
    assert memo.get(("t", 99)) is piece
    memo.put("huge", KnownPiece(np.zeros(5000, dtype=np.int32)), 5000)
    assert memo.get("huge") is None


def test_replaced_entry_is_counted_once() -> None:
    memo = TokenMemo()
    for _ in range(3):
        memo.put("k", KnownPiece(np.zeros(1, dtype=np.int32)), 1)
    once = TokenMemo()
    once.put("k", KnownPiece(np.zeros(1, dtype=np.int32)), 1)
    assert memo.num_bytes == once.num_bytes


@pytest.mark.parametrize(
    ("tokens", "borders"),
    [
        (["<|a|>", "<|b|>"], {"<|a|>", "<|b|>"}),
        (["<|a|>", AddedToken("<|b|>", rstrip=True, special=True, normalized=False)], {"<|a|>"}),
        (["<|a|>", AddedToken("<|b|>", lstrip=True, special=True, normalized=False)], {"<|a|>"}),
        (["<|a|>", AddedToken("<|b|>", single_word=True, special=True, normalized=False)], {"<|a|>"}),
        (["<|a|>", AddedToken("<|b|>", normalized=True, special=True)], {"<|a|>"}),
        (["<|a|>", "<|b|>", "x<|b|>"], {"<|a|>"}),
        (["<|a|>", "<|b|>", ">x"], set()),
        (["<|z|>"], set()),
    ],
    ids=["clean", "rstrip", "lstrip", "word", "normalized", "inside", "across", "other"],
)
@pytest.mark.parametrize("kind", ["bytes", "first"])
def test_only_tokens_that_cut_cleanly_are_borders(tmp_path: Path, kind: str, tokens: list, borders: set[str]) -> None:
    tokenizer = Tokenizer(write_tokenizer(tmp_path / "t.json", kind, special_tokens=tokens))
    found = find_borders(tokenizer, [TEMPLATE])
    assert set(found.ids) == borders
    assert bool(found.why_none) is not bool(borders)
    text = "<|a|> \n<|b|>\n x<|b|>a  <|a|>"
    split = PieceEncoder(tokenizer, found, TokenMemo()).encode(text, {}, tenant="")
    assert ids(split) == tokenizer.encode(text).tolist()


def test_a_tokenizer_that_does_not_cut_where_it_should_has_no_borders(tokenizer: CountingTokenizer) -> None:
    class Joining(CountingTokenizer):
        def encode_all(self, texts: list[str]) -> list[np.ndarray]:
            encoded = zip(super().encode_all(texts), texts, strict=True)
            return [ids[: len(ids) - text.endswith("<|b|>1")] for ids, text in encoded]

    assert find_borders(Joining(tokenizer._path), [TEMPLATE]).ids == {}


def test_without_borders_nothing_is_remembered(tokenizer: CountingTokenizer) -> None:
    memo = TokenMemo()
    PieceEncoder(tokenizer, Borders(), memo).encode("<|a|>hi", {}, tenant="")
    assert memo.num_bytes == 0


@pytest.mark.parametrize("text", ["hello world", "a é日本 b", "\n\n  x", "😀"])
@pytest.mark.parametrize("kind", ["bytes", "nfc", "first"])
def test_ends_say_where_tokens_end(tmp_path: Path, kind: str, text: str) -> None:
    tokenizer = Tokenizer(write_tokenizer(tmp_path / "t.json", kind))
    pieces = PieceEncoder(tokenizer, find_borders(tokenizer, ["<|im_end|>"]), TokenMemo())
    border, piece = pieces.encode("<|im_end|>" + text, {}, tenant="")
    ends = pieces.ends(piece)
    assert len(ends) == len(piece.token_ids)
    assert ends[-1] == len(text)
    assert (np.diff(ends) >= 0).all()
    assert pieces.ends(border).tolist() == [len("<|im_end|>")]
    for count, end in enumerate(ends, 1):
        decoded = tokenizer.decode([int(border.token_ids[0]), *piece.token_ids[:count].tolist()])
        if "\ufffd" not in decoded:
            assert decoded.removeprefix("<|im_end|>").strip() == text[:end].strip()


def test_ends_count_blanks_whatever_the_file_says_of_them(tmp_path: Path) -> None:
    raw = RawTokenizer(models.BPE(vocab={"b": 0, "Ġ": 1, "bĠ": 2}, merges=[("b", "Ġ")]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.post_processor = processors.ByteLevel(trim_offsets=True)
    raw.save(str(tmp_path / "t.json"))
    assert Tokenizer(tmp_path / "t.json").ends("b b").tolist() == [2, 3]
