"""Runs of lines in and out of fences, held to the slow way that needs no care."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from gateway.conversation import Conversation, Message
from gateway.normalize.head_text import split_fences
from gateway.normalize.registry import Choice
from gateway.normalize.rule import Mode
from gateway.normalize.rules import built_in_rules

texts = st.text(st.sampled_from("`~ab \n\r\u00a0"), max_size=60)


@given(texts, st.sampled_from([None, "```", "~~~~"]))
def test_runs_are_the_text_and_part_where_a_fence_begins_or_ends(text: str, fence: str | None) -> None:
    runs, ends_in = split_fences(text, fence)
    expected: list[tuple[str, bool]] = []
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        ((_, fenced),), fence = split_fences(line, fence)
        run = expected.pop()[0] if expected and expected[-1][1] is fenced else ""
        expected.append((run + line, fenced))
    assert ([run for run in runs if run[0]], ends_in) == (expected, fence)


def test_long_heads_take_linear_time_whatever_is_in_them() -> None:
    """With quadratic time each of these would take minutes."""
    rules = built_in_rules().rule_set({"nbsp_to_space_system": Choice(Mode.ON), "nfc_system": Choice(Mode.ON)})
    for text in ("```\n", "````\n```\n", "> ```\n", "\u00a0", "\u00a0 ```", "~~~ a\n"):
        head = Message("system", text * (1_000_000 // len(text)))
        assert len(rules.normalize(Conversation((head, Message("user", "x")))).conversation.messages) == 2
