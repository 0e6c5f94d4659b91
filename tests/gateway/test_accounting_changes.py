"""Where rules changed a prompt, and at whose change two prompts part."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.accounting.changes import border_table, changes_of, edits_between
from gateway.accounting.forms import Form, Span
from prefixcache.hashing import HASH_BYTES

BORDERS = border_table({0, 1})

tokens = st.lists(st.integers(0, 6), max_size=30).map(lambda ids: np.array(ids, dtype=np.int32))


@given(tokens, tokens)
def test_edits_make_one_prompt_of_the_other(before: np.ndarray, after: np.ndarray) -> None:
    made, position = [], 0
    for edit in edits_between(before, after, BORDERS):
        assert edit.start >= position
        made += [*before[position : edit.start], *after[edit.new_start : edit.new_stop]]
        position = edit.stop
    assert [*made, *before[position:]] == after.tolist()


@pytest.mark.parametrize(
    ("prompts", "wanted"),
    [
        ([[1, 5, 6, 1, 7], [1, 5, 9, 1, 7]], [("a", (2, 3, 2, 3))]),
        ([[1, 5, 6, 1, 7], [1, 5, 1, 7, 8]], [("a", (2, 3, 2, 2)), ("a", (5, 5, 4, 5))]),
        # Each rule's place is told in the tokens of the first and of the last prompt.
        ([[1, 5, 6, 1, 7], [1, 6, 1, 7], [1, 6, 1, 9]], [("a", (1, 2, 1, 1)), ("b", (4, 5, 3, 4))]),
        ([[1, 7, 1, 5, 6], [1, 7, 1, 6], [1, 9, 9, 1, 6]], [("a", (3, 4, 4, 4)), ("b", (1, 2, 1, 3))]),
        # The second one changed what the first one wrote.
        ([[1, 5, 6, 7], [1, 8, 8, 7], [1, 8, 9, 7]], [("a", (1, 3, 1, 3)), ("b", (1, 3, 2, 3))]),
        # Turns came and went: all between is one change.
        ([[1, 5, 1, 6, 1, 7], [1, 6, 1, 7]], [("a", (1, 3, 1, 1))]),
    ],
)
def test_changes_are_told_in_the_tokens_before_and_after(prompts: list[list[int]], wanted: object) -> None:
    arrays = [np.array(prompt, dtype=np.int32) for prompt in prompts]
    assert changes_of(arrays, ["a", "b"][: len(arrays) - 1], BORDERS) == wanted


def form(hashes: str, *spans: tuple[str, int, int]) -> Form:
    """A letter is a block of 8 tokens."""
    return Form("".join(letter * HASH_BYTES for letter in hashes).encode(), [Span(*span) for span in spans])


@pytest.mark.parametrize(
    ("one", "other", "rule"),
    [
        (form("abcd", ("clock", 9, 11)), form("axyz"), "clock"),
        (form("abcd"), form("axyz", ("clock", 9, 11)), "clock"),
        (form("abcd", ("clock", 9, 11)), form("abxy"), None),  # the change is before the block where they part
        (form("abcd", ("clock", 9, 17)), form("abxy"), "clock"),
        (form("abcd", ("dropped", 8, 8)), form("axyz"), "dropped"),
        (form("abcd", ("line ends", 0, 32), ("clock", 9, 11)), form("axyz", ("line ends", 0, 32)), "clock"),
        (form("ab", ("clock", 0, 16)), form("abcd", ("clock", 0, 16)), None),  # one begins with the other
        (form("", ("clock", 0, 3)), form("abcd"), None),
        (form("abcdefg"), form("abcdefx", ("late", 50, 51)), "late"),
    ],
)
def test_prompts_are_kept_apart_by_the_least_change_in_the_block_where_they_part(
    one: Form, other: Form, rule: str | None
) -> None:
    assert one.parting_rule(other, 8) == rule
