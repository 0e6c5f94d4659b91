"""Thoughts in what a model writes."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.answer_pieces import AnswerEnd, gather
from gateway.tools.thoughts import ThoughtParser, is_begun_by
from tests.gateway.tools.test_call_parser import chunks_of

TEXTS = st.lists(
    st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", "think>", "\n", " ", "\n\n", "Hm", "so", "<"]),
    max_size=9,
).map("".join)


def read(chunks: Sequence[str], *, is_begun: bool) -> tuple[str, str]:
    parser = ThoughtParser(is_begun=is_begun)
    pieces = [piece for chunk in chunks for piece in parser.push(chunk)] + parser.flush()
    answer = gather(pieces, AnswerEnd("stop", None, 0))
    return answer.thought, answer.text


def whole(text: str, *, is_begun: bool) -> tuple[str, str]:
    """The reference: one pattern over the whole text."""
    opening = r"\s*" if is_begun else r"\s*<think>\s*"
    found = re.fullmatch(opening + r"(?:(.*?)\s*</think>\s*(.*)|(.*))", text, re.DOTALL)
    if found is None:
        return "", text
    return (found[1], found[2]) if found[1] is not None else (found[3], "")


@given(TEXTS, st.booleans(), st.lists(st.integers(0, 40), max_size=6))
@example("<think>\nHm\n</think>\n\nso", False, [3])
@example("\nHm </thi", True, [])
@example("<think>", False, [])
def test_any_cut_gives_what_the_reference_gives(text: str, is_begun: bool, cuts: list[int]) -> None:
    wanted = whole(text, is_begun=is_begun)
    for chunks in ([text], list(text), chunks_of(text, cuts)):
        assert read(chunks, is_begun=is_begun) == wanted


@pytest.mark.parametrize(
    ("prompt", "is_begun"),
    [("<bot><think>\n", True), ("<bot><think>\n\n</think>\n\n", False), ("<bot>", False), ("<think>", True)],
)
def test_a_prompt_that_opens_the_block_is_seen(prompt: str, is_begun: bool) -> None:
    assert is_begun_by(prompt) == is_begun
