from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.context.chunks import chunks_of, sentences_of

SENTENCES = ("We agreed. ", "Is it so? ", "我们同意了。", "Dr. Who said “No.” ", "ไม่")
LINES = (
    "\n",
    "\n\n",
    "\r\n",
    "```\n",
    "~~~~\n",
    "# Head\n",
    "- entry\n",
    "1. first\n",
    '{"a": [1, 2]},\n',
    "    return x\n",
)
LETTERS = (" ", "e\u0301", "👩\u200d💻", "👍🏽", "\ud83d", "\udca9", "\u0301", "x" * 30)
SCRAPS = st.sampled_from([*SENTENCES, *LINES, *LETTERS, "2026-01-01 12:00 INFO up\n"])
TEXTS = st.lists(SCRAPS | st.text(alphabet=" .\n\r`~a。!\u0301", max_size=8), max_size=40).map("".join)


@given(TEXTS, st.integers(1, 200))
def test_chunks_are_the_text_and_none_is_empty_or_too_long(text: str, max_chars: int) -> None:
    chunks = chunks_of(text, max_chars)
    assert "".join(chunk.text for chunk in chunks) == text
    assert all(0 < len(chunk.text) <= max_chars for chunk in chunks)
    assert all(text[chunk.start : chunk.end] == chunk.text for chunk in chunks)


@given(TEXTS)
def test_no_chunk_begins_within_a_letter(text: str) -> None:
    if "\u0301" * 32 in text:
        return
    for chunk in chunks_of(text, 40)[1:]:
        assert not unicodedata.category(chunk.text[0]).startswith("M")
        assert not ("\ud800" <= text[chunk.start - 1] <= "\udbff" and "\udc00" <= chunk.text[0] <= "\udfff")
        assert text[chunk.start - 1] != "\u200d"
        assert text[chunk.start - 1 : chunk.start + 1] != "\r\n"


@given(TEXTS)
def test_sentences_are_all_words_of_the_text_in_order(text: str) -> None:
    rest = iter("".join(text.split()))
    for sentence in sentences_of(text):
        assert all(letter in rest for letter in "".join(sentence.split()))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'Dr. Smith said "We go." Then he left! He paid 3.14 USD, e.g. in cash (No. 5 too). Ok, done?',
            ['Dr. Smith said "We go."', "Then he left!", "He paid 3.14 USD, e.g. in cash (No. 5 too).", "Ok, done?"],
        ),
        ("我们同意了。预算是“五百万。”好吗？是的！", ["我们同意了。", "预算是“五百万。”", "好吗？", "是的！"]),
        (
            "# Plan\n\nOne thing\nthat goes on. Two.\n\n- a\n- b. c",
            ["# Plan", "One thing that goes on.", "Two.", "- a", "- b. c"],
        ),
        ("1. First it is. Then more.\n2. Second", ["1. First it is.", "Then more.", "2. Second"]),
        ("See:\n```py\nx = a. B\n\ny = 2\n```\nDone.", ["See:", "x = a. B", "y = 2", "Done."]),
        ("Name: Bob\nAge: 7\n", ["Name: Bob", "Age: 7"]),
        ("\n.\n```\n\n", []),
        ("", []),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences_of(text) == expected


def starts(text: str, max_chars: int) -> list[str]:
    return [chunk.text[:6] for chunk in chunks_of(text, max_chars)]


def test_prose_is_cut_at_paragraphs_then_sentences() -> None:
    text = "Alpha is one. Beta is two. Alpha is one. Beta is two.\n\nGamma is three. Delta is four."
    assert starts(text, 70) == ["Alpha ", "Gamma "]
    assert starts(text, 29) == ["Alpha ", "Alpha ", "Gamma ", "Delta "]


def test_a_heading_stays_with_what_follows() -> None:
    assert starts("Some words that fill it up.\n\n# Head\n\nBody of the head.", 50) == ["Some w", "# Head"]


def test_code_is_cut_at_lines_and_first_at_blank_ones() -> None:
    code = "```\ndef one():\n    return 'a. B'\n\ndef two():\n    return 'c. D'\n```\n"
    assert starts(code, 60) == ["```\nde", "def tw"]
    assert all(chunk.text.endswith("\n") for chunk in chunks_of(code, 25))


def test_a_fence_that_is_never_closed_is_code() -> None:
    chunks = chunks_of("```\n" + "say one. Say two things\n" * 9, 40)
    assert all(chunk.text.endswith("\n") for chunk in chunks)


@pytest.mark.parametrize("max_chars", [3, 4, 5])
def test_a_joined_emoji_stays_whole(max_chars: int) -> None:
    assert {chunk.text for chunk in chunks_of("👩\u200d💻" * 9, max_chars)} == {"👩\u200d💻"}


def test_code_without_a_fence_is_cut_at_lines() -> None:
    lines = [f'  {{"id": {number}, "text": "Yes. No. Yes."}},\n' for number in range(20)]
    assert all(chunk.text.endswith("\n") for chunk in chunks_of("".join(lines), 100))
    log = "".join(f"2026-01-01 12:00:{number} worker gave up. Will retry soon.\n" for number in range(10, 30))
    assert all(chunk.text.startswith("2026") for chunk in chunks_of(log, 100))


def test_a_long_sentence_is_cut_between_words_or_hard() -> None:
    assert [chunk.text for chunk in chunks_of("aaaa bbbb cccc", 7)] == ["aaaa ", "bbbb ", "cccc"]
    assert [len(chunk.text) for chunk in chunks_of("a" * 20, 7)] == [7, 7, 6]


@pytest.mark.parametrize("scrap", ["a", "\n", "```\n", ". ", '."', "`", " \n", "\u0301", "- a\n", '{"a": 1}, '])
def test_work_grows_with_the_text(scrap: str) -> None:
    text = scrap * (200_000 // len(scrap))  # were it quadratic, this would take minutes
    assert "".join(chunk.text for chunk in chunks_of(text, 500)) == text


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_chars: got 0"):
        chunks_of("a", 0)


def test_text_without_spaces_is_cut_as_fast_as_one_with_them() -> None:
    """Each full stop looked back to the last space, which may be the beginning of the text."""

    def seconds(line: str) -> float:
        start = time.process_time()
        chunks_of(line * 12_000, 200)
        return time.process_time() - start

    hosts, prose = "host.example.org.\n", "we met at nine. \n"
    assert min(seconds(hosts) for _ in range(2)) < 8 * min(seconds(prose) for _ in range(2))
