from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.stops import StopMatcher

letters = st.text("ab", max_size=30)
stops = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def by_hand(stops: list[str], text: str) -> tuple[str, bool]:
    """Look after every character whether a stop string is complete."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            return text[: end - len(max(matches, key=len))], True
    return text, False


@given(stops, letters, st.lists(st.integers(0, 30), max_size=6))
def test_stop_matcher_gives_the_same_however_the_text_is_cut(stops: list[str], text: str, cuts: list[int]) -> None:
    matcher = StopMatcher(stops)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    out, stopped = "", False
    for start, end in itertools.pairwise(edges):
        scan = matcher.push(text[start:end])
        out += scan.text
        if scan.stopped:
            stopped = True
            break
    if not stopped:
        out += matcher.flush()
    assert (out, stopped) == by_hand(stops, text)


@pytest.mark.parametrize(
    ("pieces", "sent"),
    [
        (["hello"], ["hello"]),
        (["hello EN"], ["hello "]),
        (["hello EN", "D"], ["hello ", ""]),
        (["hello EN", "VY"], ["hello ", "ENVY"]),
        (["E", "EN", "x"], ["", "E", "ENx"]),
    ],
)
def test_stop_matcher_holds_back_only_what_could_become_a_stop(pieces: list[str], sent: list[str]) -> None:
    matcher = StopMatcher(["END"])
    assert [matcher.push(piece).text for piece in pieces] == sent
