"""Where a chat is cut, by shares of the room and by a number of tokens; whose wish counts."""

from __future__ import annotations

import pytest

from gateway.context.asked import ContextAsked
from gateway.context.policy import ContextPolicy
from gateway.context.rule import NAME
from gateway.normalize.registry import Choice
from gateway.normalize.rule import Mode
from gateway.normalize.rules import built_in_rules


@pytest.mark.parametrize(
    ("cut_above", "marks"),
    [(0, (8000, 4000)), (2000, (2000, 1000)), (7999, (7999, 3999)), (8000, (8000, 4000)), (9000, (8000, 4000))],
)
def test_lower_of_share_and_tokens_counts(cut_above: int, marks: tuple[int, int]) -> None:
    assert ContextPolicy(high=0.8, low=0.4, cut_above=cut_above).watermarks(10_000) == marks


@pytest.mark.parametrize(
    ("head", "cut_above", "marks"),
    [(9000, 0, (9800, 9400)), (9000, 9400, (9400, 9200)), (9000, 5000, (9000, 9000)), (12_000, 0, (12_000, 12_000))],
)
def test_long_head_leaves_a_way_between_them(head: int, cut_above: int, marks: tuple[int, int]) -> None:
    assert ContextPolicy(high=0.8, low=0.4, cut_above=cut_above).watermarks(10_000, head) == marks


@pytest.mark.parametrize(
    ("mode", "asked", "wanted"),
    [
        (Mode.OFF, ContextAsked(), None),
        (Mode.OFF, ContextAsked(cuts=True), ContextPolicy()),
        (Mode.AUDIT, ContextAsked(), None),
        (Mode.AUDIT, ContextAsked(cuts=True), ContextPolicy(high=0.7, cut_above=3000)),
        (Mode.ON, ContextAsked(), ContextPolicy(high=0.7, cut_above=3000)),
        (Mode.ON, ContextAsked(cuts=True, cut_above=2000), ContextPolicy(high=0.7, cut_above=2000)),
        (Mode.ON, ContextAsked(cuts=True, cut_above=4000), ContextPolicy(high=0.7, cut_above=3000)),
    ],
)
def test_client_adds_to_the_operators_policy(mode: Mode, asked: ContextAsked, wanted: ContextPolicy | None) -> None:
    rules = built_in_rules().rule_set({NAME: Choice(mode, {"high": 0.7, "cut_above": 3000})})
    assert asked.policy_in(rules) == wanted
