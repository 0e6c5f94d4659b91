"""Patterns of operators: what is refused, and that no accepted one takes long on a text made for it."""

from __future__ import annotations

import re

import pytest

from gateway.errors import InvalidRequestError
from gateway.normalize import volatile_patterns
from gateway.normalize.volatile_kinds import KINDS
from gateway.normalize.volatile_patterns import finder


def found(pattern: str, text: str) -> list[str]:
    return [text[start:end] for start, end in finder("p", pattern)(text)]


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (r"\d{4}-\d{2}-\d{2}", "2031-05-06 and 2031-05-07", ["2031-05-06", "2031-05-07"]),
        (r"^Time: .*$", "a\nTime: 1 \nb", ["Time: 1 "]),
        (r"Dir: \S+", "Dir: /a b Dir: /c", ["Dir: /a", "Dir: /c"]),
        (r"<left>.*?</left>", "<left>5</left><left>6</left>", ["<left>5</left>", "<left>6</left>"]),
        (r"Left \d+ of \d+ tokens", "Left 5 of 10 tokens", ["Left 5 of 10 tokens"]),
        (r"(?:Mon|Tue|Wed)day, \d{1,2}:\d{2}(?::\d{2})?", "Monday, 7:08", ["Monday, 7:08"]),
        (r"x?", "axa", ["x"]),
        (r"\d+ tokens left", "now 148900 tokens left", ["148900 tokens left"]),
        (r"(?<=Dir: )\S+", "Dir: /a", ["/a"]),
        (r"(?i)time: .+", "TIME: 7", ["TIME: 7"]),
        (r"(?s)<m>.*?</m>", "<m>\n</m> <m>", ["<m>\n</m>"]),
        ("caf\u00e9 \\d", "caf\u00e9 1", ["caf\u00e9 1"]),
    ],
)
def test_patterns_find_what_they_say(pattern: str, text: str, expected: list[str]) -> None:
    assert found(pattern, text) == expected


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(a+)+b", "groups that repeat"),
        ("xyz(?:a|bc)*", "groups that repeat"),
        ("(?:ab){2}", "groups that repeat"),
        (r"(a)\1", "references"),
        ("(?=a+)b", "looks at"),
        (".*x.*", "fixed characters"),
        ("ab.*x.*", "fixed characters"),
        ("(?i)abc.*x.*", "fixed characters"),
        ("abc.*.*.*d", "fewer"),
        (r"\d{1,9}-\d{1,9}", "fewer"),
        ("(?:a|bc)" * 7, "fewer"),
        ("(", "regular expression"),
        ("", "1 to 256"),
        ("a" * 257, "1 to 256"),
        (5, "regular expression"),
    ],
)
def test_patterns_that_could_take_long_are_refused_and_told_why(pattern: object, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why) as caught:
        finder("params.patterns[3]", pattern)
    assert caught.value.param == "params.patterns[3]"


class Counting(str):
    """A text that counts how often something is searched in it."""

    searches = 0

    def find(self, *arguments: object) -> int:
        self.searches += 1
        return super().find(*arguments)  # type: ignore[arg-type]


def test_after_many_starts_in_vain_no_more_are_tried() -> None:
    text = Counting("abc" * 5000)
    assert list(finder("p", "abc.*x.*y")(text)) == []
    assert text.searches == volatile_patterns._MAX_FAILED_STARTS + 1


def test_an_open_end_sees_only_so_many_characters() -> None:
    (span,) = finder("p", "abc.*")("abc" + "d" * 10_000)
    assert span == (0, 4096)
    assert found("abc.*x", "abc" + "d" * 5000 + "x") == []
    assert found(r"\d+", "5" * 300) == ["5" * 256, "5" * 44]


@pytest.mark.parametrize("kind", KINDS)
def test_built_in_kinds_obey_the_same_bounds(kind: str) -> None:
    """All lengths have an end, so a start costs a bounded time."""
    assert not re.search(r"(?<!\\)[*+](?!\])|,\}", re.sub(r"\[[^\]]*\]", "C", KINDS[kind].pattern))
