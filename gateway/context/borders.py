"""Where a text may be cut: behind sentences, lines and paragraphs of prose, behind lines of code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

BLOCK, LINE, SENTENCE, HEADING = 3, 2, 1, 0
"""How good a border is. Behind a heading is the worst: it belongs to what follows."""

FENCES = ("```", "~~~")
_FENCE = re.compile(r"^ {0,3}(`{3,}+|~{3,}+)([^\n]*)\n?", re.MULTILINE)
_BLANK_LINES = re.compile(r"\n(?:[ \t\r\f\v]*+\n)++")
_PROSE = re.compile(
    r"[\n.!?…؟۔։።。！？；｡।॥]"
    r"(?:(?<=\n)\n*+"
    r"|(?<=[。！？；｡।॥])[\"'”’」』）】》〉]*+[ \t\r\n]*+"
    r"|[\"'”’»)\]]*+[ \t\r\n]++)"
)
"""Begins with one set of signs, which the search finds fast."""
_BEGINS_LINE = re.compile(r"[ \t]*+(?:[-*+•·>|]|\(?\w{1,3}[.)][ \t]|#{1,6} )")
_ABBREVIATIONS = frozenset(["dr", "mr", "mrs", "ms", "prof", "st", "no", "nr", "vs", "fig", "e.g", "i.e", "z.b", "ca"])
_MOST_CHARS_OF_ABBREVIATION = 8
"""With a space or a bracket before it."""
_LOG_LINE = re.compile(r"^\W?\d{2,4}[-/:.]\d\d", re.MULTILINE)
_SAMPLE_CHARS = 2000
_LIST_NUMBER_CHARS = 4
_SHORT_LINE_CHARS = 60
"""A line of prose that is shorter, and not continued by a small letter, ends what it says."""


class Border(NamedTuple):
    """A place where a text may be cut."""

    end: int
    """Of what stands before it, in characters; behind white space."""
    rank: int


def borders_of(text: str) -> Iterator[Border]:
    """Find the borders of a text in order, without its end. Linear in its length."""
    if "\n" not in text and not any(match.end() < len(text) for match in _PROSE.finditer(text)):
        return  # as most short turns
    for start, stop, is_code in _blocks(text):
        yield from _borders_of_code(text, start, stop) if is_code else _borders_of_prose(text, start, stop)
        if stop < len(text):
            is_heading = not is_code and text.startswith("#", start) and "\n" not in text[start:stop].strip("\n")
            yield Border(stop, HEADING if is_heading else BLOCK)


def fenced_spans(text: str) -> list[tuple[int, int]]:
    """Find the code blocks between fences: start and stop in characters. One that is never closed is none."""
    return [(start, stop) for start, stop, is_fenced in _fences(text) if is_fenced and _is_closed(text, start, stop)]


def _is_closed(text: str, start: int, stop: int) -> bool:
    last = text.rfind("\n", start, stop - 1) + 1
    return last > start and text[last:stop].strip()[:3] in FENCES


def _blocks(text: str) -> Iterator[tuple[int, int, bool]]:
    """Cut a text into blocks in fences, which are code, and paragraphs between them."""
    for start, stop, is_fenced in _fences(text):
        if is_fenced:
            yield start, stop, True
            continue
        for blank in _BLANK_LINES.finditer(text, start, stop):
            if blank.end() < stop:
                yield start, blank.end(), looks_like_code(text, start, blank.end())
                start = blank.end()
        yield start, stop, looks_like_code(text, start, stop)


def _fences(text: str) -> Iterator[tuple[int, int, bool]]:
    """Cut a text at its code fences; one that is never closed goes to the end."""
    if not any(mark in text for mark in FENCES):
        yield 0, len(text), False
        return
    start, opened = 0, ""
    for fence in _FENCE.finditer(text):
        mark = fence[1]
        if not opened:
            if mark[0] == "`" and "`" in fence[2]:
                continue  # code within a line
            if fence.start() > start:
                yield start, fence.start(), False
            start, opened = fence.start(), mark
        elif mark.startswith(opened) and not fence[2].strip():
            yield start, fence.end(), True
            start, opened = fence.end(), ""
    if start < len(text):
        yield start, len(text), bool(opened)


def looks_like_code(text: str, start: int, stop: int) -> bool:
    """Judge by the signs in a block, or the times at the beginning of its lines, whether it is code, data or a log."""
    sample = text[start : min(stop, start + _SAMPLE_CHARS)]
    num_lines = sample.count("\n") + 1
    num_signs = sum(map(sample.count, '{}[]()<>=;|_"\\'))
    return 16 * num_signs > len(sample) or 2 * len(_LOG_LINE.findall(sample)) > num_lines


def _borders_of_code(text: str, start: int, stop: int) -> Iterator[Border]:
    end = text.find("\n", start, stop) + 1
    while 0 < end < stop:
        is_blank = text[end] in "\r\n"
        while end < stop and text[end] in "\r\n":
            end += 1
        if end < stop:
            yield Border(end, LINE if is_blank else SENTENCE)
        end = text.find("\n", end, stop) + 1


def _borders_of_prose(text: str, start: int, stop: int) -> Iterator[Border]:
    last = start
    for match in _PROSE.finditer(text, start, stop):
        end = match.end()
        if end >= stop:
            break
        rank = _rank_of_line(text, start, end) if "\n" in match[0] else HEADING
        if rank == HEADING and _ends_sentence(text, last, match.start(), end):
            rank = SENTENCE
        if rank > HEADING:
            yield Border(end, rank)
            last = end


def _rank_of_line(text: str, start: int, end: int) -> int:
    """Rank the border before a line: good before a heading, an entry of a list or a row, none within a sentence."""
    if _BEGINS_LINE.match(text, end):
        return BLOCK if text.startswith("#", end) else LINE
    line = text[max(start, text.rfind("\n", start, end - 1) + 1) : end]
    return SENTENCE if len(line) < _SHORT_LINE_CHARS and not text[end].islower() else HEADING


def _ends_sentence(text: str, start: int, stop: int, end: int) -> bool:
    """Whether a sign that stands at `stop`, with white space behind it up to `end`, ends what begins at `start`."""
    if text[stop] == "\n":
        return False
    if text[stop] in "。！？；｡।॥":
        return True
    if text[stop] != ".":
        return end - start > _LIST_NUMBER_CHARS
    near = max(start, stop - _MOST_CHARS_OF_ABBREVIATION)  # what goes before may be all of a text without spaces
    word = text[max(near, text.rfind(" ", near, stop) + 1) : stop].lstrip("(")
    is_short = len(word) == 1 or word.lower() in _ABBREVIATIONS
    return end - start > _LIST_NUMBER_CHARS and not text[end].islower() and not is_short
