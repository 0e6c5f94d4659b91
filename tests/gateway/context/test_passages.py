from __future__ import annotations

import itertools
import math
import random

import bm25s
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.context.bm25 import Bm25
from gateway.context.documents import asked_in
from gateway.context.passages import Archive, Passage, printed
from gateway.context.words import MAX_KNOWN, Words
from tests.gateway.context.facts import documents, facts

WORDS = st.lists(st.sampled_from(["a", "b", "gate", "code", "7391"]), max_size=12)


def count(text: str) -> int:
    return -(-len(text) // 4)


@given(st.lists(WORDS, min_size=1, max_size=6).filter(any), WORDS)
def test_scores_are_those_of_the_library(texts: list[list[str]], question: list[str]) -> None:
    library = bm25s.BM25(method="lucene", k1=1.5, b=0.75, backend="numpy", csc_backend="numpy")
    library.index(texts, show_progress=False)
    expected = np.zeros(len(texts))
    for word in dict.fromkeys(question):
        if num_with := sum(word in text for text in texts):
            rarity = math.log(1 + (len(texts) - num_with + 0.5) / (num_with + 0.5))
            expected += rarity * library.get_scores([word])
    np.testing.assert_allclose(Bm25(texts).scores(question), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Gates of 1,024 companies", ["the", "gate", "of", "1", "024", "company"]),
        ("max_retry_count", ["max_retry_count", "max", "retry", "count"]),
        ("parseHTTPBody2", ["parsehttpbody2", "parse", "http", "body", "2"]),
        ("预算是500万 ok", ["预算", "算是", "500", "万", "ok"]),
        ("Straße STRASSE", ["strasse", "strasse"]),
        ("หมู", ["หม", "มู"]),
        ("\ud83d !?", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert Words().of(text) == expected


@pytest.mark.parametrize("seed", range(3))
def test_facts_are_found_in_a_tenth_of_the_archive(seed: int) -> None:
    rng = random.Random(seed)
    asked = [fact for _ in range(6) for fact in _archive_of(rng)]
    assert sum(asked) >= 0.97 * len(asked)


def _archive_of(rng: random.Random) -> list[bool]:
    hidden = list(facts(rng))
    archive_of = documents(rng, 16_000, hidden)
    budget = count("".join(text for _, text in archive_of)) // 10
    archive = Archive(archive_of)
    return [fact.text in printed(archive.best(fact.question, budget, count)) for fact in hidden]


TEXTS = st.lists(
    st.lists(
        st.sampled_from(["The gate is open. ", "我们同意。", "code " * 60, "\n\n", "```\nx = 1\n```\n"]), max_size=30
    ),
    max_size=4,
).map(lambda texts: [(f"d{number}", "".join(text)) for number, text in enumerate(texts)])


@given(TEXTS, st.sampled_from(["gate", "code x", "同意 gate", "", "unknown"]), st.integers(0, 600))
def test_passages_are_parts_in_order_within_the_budget(texts: list[tuple[str, str]], query: str, budget: int) -> None:
    passages = Archive(texts).best(query, budget, count)
    assert not passages or count(printed(passages)) <= budget
    places = [(passage.document, passage.start, passage.end) for passage in passages]
    assert places == sorted(places)
    assert all(first[0] != second[0] or first[2] < second[1] for first, second in itertools.pairwise(places))
    for passage in passages:
        assert dict(texts)[passage.document][passage.start : passage.end] == passage.text
        assert set(Words().of(query)) & set(Words().of(passage.text))


def test_the_best_come_first_and_ties_by_place() -> None:
    filler = "Nothing of note was said on that day by anyone there. " * 9 + "\n\n"
    texts = [("d0", f"The gate is red.{filler}"), ("d1", f"The gate is red.{filler}"), ("d2", "The gate code is 7.")]
    archive = Archive(texts)
    assert [passage.document for passage in archive.best("gate code", 40, count)] == ["d2"]
    equal = Archive([(f"d{number}", f"The gate {'is red' if number % 2 else 'was red'}.") for number in range(300)])
    assert [passage.document for passage in equal.best("gate is", 40, count)] == ["d1", "d3"]


@pytest.mark.parametrize("texts", [[], [("d0", "")], [("d0", "Some text.")]])
def test_nothing_asked_or_nothing_there_gives_nothing(texts: list[tuple[str, str]]) -> None:
    assert Archive(texts).best("", 100, count) == []
    assert Archive(texts).best("gate", 100, count) == []
    assert printed([]) == ""


def test_print() -> None:
    lines = printed([Passage("d3", 0, 2, "A\n"), Passage("d5.1", 4, 5, "B")]).split("\n")
    assert lines[1:] == ["```d3", "A", "```", "```d5.1", "B", "```", ""]


def test_a_name_is_found_among_those_that_have_one_of_its_words() -> None:
    others = [
        f"{first} {last} was in the news. " for first in ("Oak", "Elm", "Ash") for last in ("Mill", "Gate", "Hall")
    ]
    text = "".join(40 * [scrap for scrap in others if "Oak Hall" not in scrap])
    documents = [("d1", text), ("d2", "They say that Hall is near Oak. " * 3), ("d3", "Oak Hall burnt down in May.")]
    (best,) = Archive(documents).best("What became of Oak Hall?", count(printed([])) + 40, count)
    assert best.text == "Oak Hall burnt down in May."


def test_a_question_that_was_asked_before_answers_nothing() -> None:
    asked = [(f"d{number}", f"Hello. How much may the {one} cost?") for number, one in enumerate(("boat", "tent"))]
    told = ("d9", "The kayak: nothing above 410.")
    (best,) = Archive([*asked, told]).best("How much may the kayak cost?", 40, count)
    assert best.text == told[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Read this.\n\nOne.\n\nTwo.\n\nWho?", "Read this.\n\nWho?"),
        ("Who?\n\nOne.\n\nWhen?\n\nTwo.\n\nRead this.", "Who?\n\nWhen?\n\nRead this."),
        ("在哪里？\n\n一。\n\n多少？\n\n二。\n\n三。", "在哪里？\n\n多少？\n\n三。"),
        ("All of it", "All of it"),
        ("", ""),
    ],
)
def test_what_is_asked(text: str, expected: str) -> None:
    assert asked_in(text) == expected


def test_words_are_kept_up_to_a_bound_and_stay_the_same() -> None:
    words = Words()
    text = " ".join(f"x{number}" for number in range(MAX_KNOWN + 10)) + " " + 100 * "y"
    assert words.of(text) == Words().of(text)
    assert words.num_known == MAX_KNOWN
    assert words.of("x1") == ["x1", "x", "1"]
    assert words.num_known == 1


def test_small_budget_gives_passages_of_scripts_that_take_many_tokens() -> None:
    lines = [f"第{number}号船在宁波装了{number + 100}箱茶叶，船长姓王，明天早上开往上海。" for number in range(300)]
    lines[77] = "“海燕”号船在青岛装了三百箱丝绸，船长姓李，后天晚上开往广州。"
    (passage, *_) = Archive([("d1", "\n".join(lines))]).best(
        "“海燕”号船装了多少箱货？", 200, lambda text: len(text.encode()) // 2
    )
    assert "三百箱" in passage.text
