"""Counts: the tokenizer's own for short texts, near them for long ones, the same each time, and little memory."""

from __future__ import annotations

import itertools
import random
import string
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.context.estimate import MAX_KNOWN, MAX_WHOLE_CHARS, TokenCounter
from gateway.tokenizer import TokenArray, Tokenizer
from tests.gateway.context.facts import filler


def bytes_of(texts: Sequence[str]) -> list[TokenArray]:
    """Write each byte as a token: a tokenizer for which it does not matter where a text is cut."""
    return [np.frombuffer(text.encode("utf-8", "replace"), np.uint8).astype(np.int32) for text in texts]


def num_bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


@given(st.text())
def test_all_of_a_short_text_is_counted_once(text: str) -> None:
    assert TokenCounter(bytes_of)(text) == num_bytes(text)


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(0, 2000))
def test_short_texts_have_the_tokenizers_count_or_a_little_more(tokenizer: Tokenizer, seed: int, size: int) -> None:
    text = "".join(filler(random.Random(seed), size))[:size]
    exact = len(tokenizer.encode(text))
    assert exact <= TokenCounter(tokenizer.encode_all)(text) <= 1.03 * exact + 1


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(MAX_WHOLE_CHARS + 1, 20 * MAX_WHOLE_CHARS), st.floats(0, 1))
def test_long_texts_are_near_it(seed: int, size: int, share: float) -> None:
    """Half of a kind and half of another, of which a character takes three times as many."""
    cut = int(share * size)
    text = "amber basil " * (cut // 12) + "我们" * ((size - cut) // 2)
    if len(text) > MAX_WHOLE_CHARS:
        assert TokenCounter(bytes_of)(text) == pytest.approx(num_bytes(text), rel=0.1)


def test_what_is_known_changes_no_count() -> None:
    texts = ["".join(filler(random.Random(seed), 3000)) for seed in range(8)]
    counter = TokenCounter(bytes_of)
    counts = [counter(text) for text in texts]
    assert [counter(text) for text in texts] == counts
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(counter, texts * 4)) == counts * 4


def test_memory_is_bounded() -> None:
    counter, letters = TokenCounter(bytes_of), string.ascii_lowercase
    words = ["".join(word) for word in itertools.product(letters, repeat=4)]
    for start in range(0, 3 * MAX_KNOWN, 1000):
        counter(" ".join(words[start : start + 1000]))
        assert 0 < counter.num_known <= MAX_KNOWN
