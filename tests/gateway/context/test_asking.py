from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.context.asking import usable_summary
from tests.gateway.context.histories import count, words


def usable(text: str, *, is_cut: bool = False, most_tokens: int = 100) -> str | None:
    return usable_summary(text, is_cut=is_cut, most_tokens=most_tokens, count=count)


@pytest.mark.parametrize(
    ("text", "is_cut", "kept"),
    [
        ("\n We agreed on the red gate. ", False, "We agreed on the red gate."),
        ("We agreed on the red gate", False, "We agreed on the red gate"),
        ("We agreed on the red gate. Then we sa", True, "We agreed on the red gate."),
        ("We agreed on the red gate.", True, "We agreed on the red gate."),
        ("我们同意在四月修理红色的大门并通知所有的人。然后我", True, "我们同意在四月修理红色的大门并通知所有的人。"),
        ("We agreed on the red gate and never came to an end of it", True, None),
        ("- The red gate is closed\n- It is to be mended by No", True, "- The red gate is closed"),
        ("ok", False, None),
        (" \n", False, None),
    ],
)
def test_whole_sentences_are_taken(text: str, is_cut: bool, kept: str | None) -> None:
    assert usable(text, is_cut=is_cut) == kept


@pytest.mark.parametrize("text", ["The gate is red. " * 30, "ha" * 300, "门是红的。" * 60, "a\n" * 200])
def test_what_goes_round_in_circles_is_not_taken(text: str) -> None:
    assert usable(text, most_tokens=1000) is None


def test_lists_of_much_the_same_are_taken() -> None:
    lines = "\n".join(f"- {name} pays {17 * number} euros." for number, name in enumerate(words(25).split(), 3))
    assert usable(lines, most_tokens=1000) == lines


@given(st.text(alphabet="aB .。!\n\u0301", max_size=300), st.booleans(), st.integers(5, 60))
def test_what_is_taken_begins_the_text_and_fits(text: str, is_cut: bool, most_tokens: int) -> None:
    taken = usable(text, is_cut=is_cut, most_tokens=most_tokens)
    assert taken is None or (text.strip().startswith(taken) and count(taken) <= most_tokens)
