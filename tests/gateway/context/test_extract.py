from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.context.chunks import sentences_of
from gateway.context.extract import MAX_SENTENCES, lexrank, summarize
from tests.gateway.context.facts import documents, facts


def count(text: str) -> int:
    return -(-len(text) // 4)


def test_scores_are_those_of_the_library() -> None:
    sentences = [
        "the red gate is open",
        "the red gate is closed today",
        "we painted the gate red",
        "cats sleep all day",
        "cats and dogs sleep",
        "budget plan for the gate",
        "budget plan budget plan",
        "nothing here at all",
    ]
    by_sumy = [0.4615, 0.346, 0.346, 0.4451, 0.2967, 0.3463, 0.231, 0.2967]  # 0.13.0, its LexRank to 1e-4
    np.testing.assert_allclose(lexrank([line.split() for line in sentences]), by_sumy, atol=1e-4)


SENTENCES = ("We agreed on 7. ", "The gate is red. ", "The gate is wide! ", "我们同意。", "预算是500万。”", "“Go.” ")
LINES = ("\n\n", "- entry\n", "```\nx = 1\n```\n", "# Head\n")
SCRAPS = st.sampled_from([*SENTENCES, *LINES, "\ud83d", "x" * 1200])
TEXTS = st.lists(st.lists(SCRAPS, max_size=15).map("".join), max_size=5)


@given(TEXTS, st.integers(0, 200))
def test_a_summary_is_sentences_in_order_within_the_budget(texts: list[str], budget: int) -> None:
    summary = summarize(texts, budget, count)
    assert count(summary) <= budget
    assert len(summary) <= len("\n".join(texts))
    letters = iter("".join("\n".join(texts).split()))
    assert all(letter in letters for letter in "".join(summary.split()))


@given(TEXTS)
def test_all_is_quoted_where_it_fits_but_nothing_twice(texts: list[str]) -> None:
    every = [sentence for text in texts for sentence in sentences_of(text) if len(sentence) < 1000]
    summary = summarize(texts, 10_000, count)
    assert all(sentence in summary for sentence in every)
    assert sum(map(len, dict.fromkeys(every))) <= len(summary) <= sum(len(one) + 1 for one in dict.fromkeys(every))


@pytest.mark.parametrize("seed", range(3))
def test_facts_outlive_filler(seed: int) -> None:
    rng = random.Random(seed)
    hidden = list(facts(rng))[:13]
    texts = [text for _, text in documents(rng, 40_000, hidden)]
    summary = summarize(texts, count("".join(texts)) // 10, count)
    assert sum(fact.text in summary for fact in hidden) >= 0.9 * len(hidden)


def test_what_most_sentences_say_is_kept() -> None:
    texts = [
        "The harbor budget is approved. Cats sleep. The harbor budget was cut. Rain fell. The budget is for the harbor."
    ]
    assert summarize(texts, 8, count) == "The budget is for the harbor."


def test_chinese_is_joined_without_spaces() -> None:
    assert summarize(["我们同意了。预算是500万。"], 100, count) == "我们同意了。预算是500万。"


@pytest.mark.parametrize("texts", [[], [""], ["...", "\n```\n"], ["x" * 5000]])
def test_nothing_to_quote_gives_nothing(texts: list[str]) -> None:
    assert summarize(texts, 100, count) == ""


def test_sentences_that_share_no_word_are_quoted_too() -> None:
    assert summarize(["Alpha.", "Beta."], 100, count) == "Alpha.\nBeta."


def test_no_more_sentences_are_compared_than_the_most() -> None:
    texts = [f"Gate {number} is red and its neighbor is {number + 1}." for number in range(2 * MAX_SENTENCES)]
    assert summarize(texts, 10**6, count).count("\n") == MAX_SENTENCES - 1
