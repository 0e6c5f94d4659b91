"""Explain on the labelled set: the reason, the region and the characters that differ."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.explain.difference import difference_of
from gateway.explain.sentences import sentence
from prefixcache import Reason
from tests.gateway.explain.cases import all_misses
from tests.gateway.explain.labelled import BLOCK, Answer, CharDecoder, Miss

NUM_MISSES = 60
NUM_RIGHT = 58


def answered(miss: Miss) -> Answer:
    explanation, place = miss.explain()
    difference = difference_of(explanation, place, CharDecoder())
    if explanation.diverging_token is None or not miss.answer.prompt:
        return Answer(explanation.reason)
    wanted = miss.answer
    shown = (difference.prompt[: len(wanted.prompt)], difference.cached[: len(wanted.cached)])
    return Answer(explanation.reason, place.owner if place else None, *shown)


def test_labelled_set_has_every_reason_and_kind_of_region() -> None:
    misses = all_misses()
    assert len(misses) == NUM_MISSES
    assert len({miss.name for miss in misses}) == len(misses)
    counts = Counter(miss.answer.reason for miss in misses)
    assert {reason: count for reason, count in counts.items() if count < 4} == {}
    assert set(counts) == set(Reason) - {Reason.HIT}
    owners = Counter((miss.answer.owner or "").partition("[")[0] for miss in misses)
    assert min(owners[kind] for kind in ("tools", "messages", "template")) >= 4


def test_explain_is_right_on_the_labelled_set() -> None:
    misses = all_misses()
    wrong = {miss.name: (answer, miss.answer) for miss in misses if (answer := answered(miss)) != miss.answer}
    assert len(misses) - len(wrong) >= NUM_RIGHT, wrong


@pytest.mark.parametrize("miss", all_misses(), ids=lambda miss: miss.name)
def test_sentence_is_one_and_names_the_numbers(miss: Miss) -> None:
    explanation, place = miss.explain()
    text = sentence(explanation, place, block_size=BLOCK)
    assert text.endswith(".")
    assert "\n" not in text
    assert str(explanation.num_prompt_tokens) in text
