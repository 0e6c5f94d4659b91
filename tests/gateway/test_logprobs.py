"""Log probabilities go out with the text of their tokens, wherever characters, batches and stop strings cut it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models

from gateway.answer import Answer
from gateway.answer_pieces import Text
from gateway.backends.base import TokenBatch
from gateway.tokenizer import Tokenizer
from tests.gateway.support.fake_backend import FakeBackend, logprobs_of
from tests.gateway.support.tiny_model import EOS_ID
from tests.gateway.test_chat import chat, events

PATH = "/v1/chat/completions"


def cut(token_ids: list[int], sizes: list[int], finish_reason: str) -> Iterator[TokenBatch]:
    """A reply in batches of these sizes."""
    rest = [*token_ids, EOS_ID] if finish_reason == "stop" else list(token_ids)
    more = iter(sizes)
    while rest:
        size = next(more, len(rest))
        batch, rest = rest[:size], rest[size:]
        logprobs = [logprobs_of(token, 1) for token in batch]
        yield TokenBatch(batch, None if rest else finish_reason, logprobs)


def spelled(entries: list[dict]) -> bytes:
    return b"".join(bytes(entry["bytes"]) for entry in entries)


TEXTS = st.text(alphabet="ab the\n😀é́ß<|>", max_size=12)


@given(
    TEXTS,
    st.lists(st.integers(1, 4), max_size=12),
    st.lists(st.text(alphabet="abthe 😀", min_size=1, max_size=4), max_size=3),
    st.sampled_from(["stop", "length"]),
)
def test_text_and_its_tokens_go_together(
    tokenizer: Tokenizer, text: str, sizes: list[int], stops: list[str], finish_reason: str
) -> None:
    token_ids = tokenizer.encode_literal(text).tolist()
    if not token_ids and finish_reason == "length":
        return
    batches = cut(token_ids, sizes, finish_reason)
    answer = Answer(tokenizer, stops=stops)
    said, entries = "", []
    for batch in batches:
        for piece in answer.push(batch):
            assert isinstance(piece, Text)
            said += piece.text
            entries += piece.logprobs or ()
            assert spelled(entries).startswith(said.encode()), "text without its tokens"
            assert not entries or len(spelled(entries[:-1])) < len(said.encode()), "a token without any of its text"
        if answer.is_over:
            break
    entries += answer.end.logprobs or ()
    assert [entry["logprob"] for entry in entries] == [-token / 8 for token in token_ids[: len(entries)]]
    if said == text:
        assert len(entries) == len(token_ids)


@pytest.mark.parametrize("batch_size", [1, 3])
async def test_a_character_of_several_tokens_brings_them_all(
    client: httpx.AsyncClient, backend: FakeBackend, tokenizer: Tokenizer, batch_size: int
) -> None:
    backend.reply, backend.batch_size = [*tokenizer.encode("a😀b").tolist(), EOS_ID], batch_size
    answer = await client.post(PATH, json=chat(stream=True, logprobs=True))
    chunks = [event["choices"][0] for event in events(answer)[:-1]]
    said = [(choice["delta"]["content"], choice["logprobs"]["content"]) for choice in chunks[1:-1]]
    assert "".join(text for text, _ in said) == "a😀b"
    assert all(spelled(entries).decode() == text for text, entries in said)
    assert [entry["top_logprobs"] for _, entries in said for entry in entries] == [[]] * 6
    assert (chunks[0]["logprobs"], chunks[-1]["logprobs"]) == (None, None)


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_of_a_stop_string_are_not_told(
    client: httpx.AsyncClient, backend: FakeBackend, tokenizer: Tokenizer, stream: bool
) -> None:
    backend.reply = [*tokenizer.encode("hello, world and all").tolist(), EOS_ID]
    answer = await client.post(PATH, json=chat(stream=stream, logprobs=True, stop=[" world and"]))
    choices = [event["choices"][0] for event in events(answer)[:-1]] if stream else answer.json()["choices"]
    entries = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert spelled(entries) == b"hello,"


async def test_tokens_that_end_a_cut_answer_without_text_are_told_last(
    client: httpx.AsyncClient, backend: FakeBackend, tokenizer: Tokenizer
) -> None:
    backend.reply, backend.ends = tokenizer.encode("a😀").tolist()[:3], False
    answer = await client.post(PATH, json=chat(stream=True, logprobs=True))
    last = events(answer)[-2]["choices"][0]
    assert last["finish_reason"] == "length"
    assert spelled(last["logprobs"]["content"]) == "😀".encode()[:2]


def test_tokens_are_spelled_as_bytes(tokenizer: Tokenizer, tmp_path: Path) -> None:
    text = "the 😀\n"
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text).tolist())) == text.encode()
    assert tokenizer.token_bytes(0) == b"<|end|>"
    assert tokenizer.token_bytes(10**6) == b""
    vocab = {"<unk>": 0, "<0xF0>": 1, "▁the": 2, "x": 3}
    pieces = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    pieces.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    pieces.save(str(tmp_path / "tokenizer.json"))
    plain = Tokenizer(tmp_path / "tokenizer.json")
    assert [plain.token_bytes(token) for token in (1, 2, 3)] == [b"\xf0", b" the", b"x"]
