"""Regular expressions that operators declare, kept from taking long on any text.

Python's matcher backtracks and cannot be stopped, so a pattern must not be able to try many ways. Groups that repeat and
references are refused, and the ways to match from one start are counted. A pattern with an open end (`*`, `+`, `{n,}`)
sees only so many characters from each start. With two of them it has to begin with fixed characters, and only so many
places that begin with these are tried.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from re import _parser  # type: ignore[attr-defined]  # what `re` itself reads patterns with: a second reading would differ
from typing import Any

from gateway import checks

Spans = Iterator[tuple[int, int]]
Finder = Callable[[str], Spans]
"""Yields the places in a text that shall move: not empty, in order, apart."""

MAX_PATTERN_CHARS = 256
_MAX_WAYS = 64
_MAX_OPEN_ENDS = 2
_CHARS_SEEN = 256
"""From the start of a match on, where there is an open end."""
_CHARS_SEEN_BEHIND_FIXED = 4096
"""The same, where fixed characters begin it and one end is open."""
_MIN_FIXED_CHARS = 3
_MAX_FAILED_STARTS = 256


def finder(name: str, source: object) -> Finder:
    """Make a finder of a regular expression.

    Args:
        name: of the parameter, for errors.
        source: in Python's syntax; `^` and `$` stand for the ends of lines.

    Raises: InvalidRequestError: it is no regular expression, or could take long.
    """
    if not isinstance(source, str) or not 0 < len(source) <= MAX_PATTERN_CHARS:
        checks.refuse(name, source, f"a regular expression of 1 to {MAX_PATTERN_CHARS} characters")
    try:
        pattern = re.compile(source, re.MULTILINE)
        shape = _shape_of(_parser.parse(source, re.MULTILINE))
    except (re.error, OverflowError, RecursionError) as error:
        checks.refuse(name, source, f"a regular expression ({error})")
    except _RefusedError as error:
        checks.refuse(name, source, f"a regular expression without {error}: it could take long on some texts")
    if shape.ways > _MAX_WAYS or shape.open_ends > _MAX_OPEN_ENDS:
        checks.refuse(name, source, "fewer alternatives and lengths: it could take long on some texts")
    if not shape.open_ends:
        return lambda text: (match.span() for match in pattern.finditer(text) if match.end() > match.start())
    has_start = len(shape.fixed) >= _MIN_FIXED_CHARS and not pattern.flags & re.IGNORECASE
    if shape.open_ends == 1:
        if not has_start:
            return lambda text: _from_every_start(pattern, text)
        return lambda text: _behind(shape.fixed, pattern, text, _CHARS_SEEN_BEHIND_FIXED)
    if not has_start:
        wanted = f"at least {_MIN_FIXED_CHARS} fixed characters at its start, because of its two open ends"
        checks.refuse(name, source, f"{wanted}: it could take long on some texts")
    return lambda text: _behind(shape.fixed, pattern, text, _CHARS_SEEN)


def _from_every_start(pattern: re.Pattern[str], text: str) -> Spans:
    start = 0
    while start < len(text):
        match = pattern.match(text, start, start + _CHARS_SEEN)
        if match is not None and match.end() > start:
            yield match.span()
            start = match.end()
        else:
            start += 1


def _behind(fixed: str, pattern: re.Pattern[str], text: str, num_chars: int) -> Spans:
    """Try only where the fixed characters stand; after too many starts in vain the rest stays where it is."""
    failed, start = 0, text.find(fixed)
    while start >= 0 and failed < _MAX_FAILED_STARTS:
        match = pattern.match(text, start, start + num_chars)
        if match is None:
            failed += 1
        else:
            yield match.span()
        start = text.find(fixed, start + 1 if match is None else match.end())


class _RefusedError(Exception):
    """What a pattern must not have."""


@dataclass(slots=True)
class _Shape:
    ways: int = 1
    """Ways to match from one start, open ends apart."""
    open_ends: int = 0
    fixed: str = ""
    """What every match begins with."""


def _shape_of(nodes: Iterable[tuple[Any, Any]]) -> _Shape:
    shape = _Shape()
    at_start = True
    for operation, argument in nodes:
        kind = str(operation)
        if kind == "LITERAL":
            shape.fixed += chr(argument) if at_start else ""
            continue
        if kind == "AT":
            continue
        at_start = False
        if kind == "SUBPATTERN":
            _include(shape, _shape_of(argument[-1]))
        elif kind == "BRANCH":
            branches = [_shape_of(branch) for branch in argument[1]]
            shape.ways *= sum(branch.ways for branch in branches)
            shape.open_ends += sum(branch.open_ends for branch in branches)
        elif kind in ("MAX_REPEAT", "MIN_REPEAT"):
            _repeat(shape, *argument)
        elif kind in ("ASSERT", "ASSERT_NOT"):
            ahead = _shape_of(argument[1])
            if ahead.open_ends:
                raise _RefusedError("open ends in what it looks at")
            shape.ways *= ahead.ways
        elif kind not in ("IN", "ANY", "NOT_LITERAL"):
            raise _RefusedError("references and the like")
    return shape


def _include(shape: _Shape, other: _Shape) -> None:
    shape.ways *= other.ways
    shape.open_ends += other.open_ends


def _repeat(shape: _Shape, least: int, most: int, nodes: Iterable[tuple[Any, Any]]) -> None:
    (first, *more) = nodes
    if most > 1 and (more or str(first[0]) not in ("LITERAL", "NOT_LITERAL", "IN", "ANY")):
        raise _RefusedError("groups that repeat")
    _include(shape, _shape_of([first, *more]))
    if most == _parser.MAXREPEAT:
        shape.open_ends += 1
    else:
        shape.ways *= int(most) - least + 1
