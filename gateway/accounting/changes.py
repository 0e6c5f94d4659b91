"""Which tokens of a prompt each rule changed, seen from its prompts before and after every rule.

Two prompts are compared piece by piece, cut at the special tokens that a template writes between turns; in a piece that
differs, everything between the common start and the common end counts as changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gateway.tokenizer import TokenArray
from prefixcache.shadow import Change


class Edit(NamedTuple):
    """Tokens [start, stop) became tokens [new_start, new_stop)."""

    start: int
    stop: int
    new_start: int
    new_stop: int


def changes_of(prompts: Sequence[TokenArray], rules: Sequence[str], borders: TokenArray) -> list[Change]:
    """Tell where the first prompt was changed, and by which rule.

    Args:
        prompts: before all rules, and then after each.
        rules: their names in order, one fewer.
        borders: ids of the special tokens, int32.
    """
    changes: list[Change] = []
    earlier: list[list[Edit]] = []
    for rule, before, after in zip(rules, prompts, prompts[1:], strict=False):
        edits = edits_between(before, after, borders)
        for edit in edits:
            start, stop = edit.start, edit.stop
            for step in reversed(earlier):
                start, stop = _before(start, stop, step)
            changes.append(Change(start, stop, rule))
        earlier.append(edits)
    return changes


def edits_between(before: TokenArray, after: TokenArray, borders: TokenArray) -> list[Edit]:
    """Compare two prompts; the edits are in order and do not overlap."""
    cuts, new_cuts = _cuts(before, borders), _cuts(after, borders)
    if len(cuts) != len(new_cuts):
        cuts, new_cuts = [0, len(before)], [0, len(after)]
    edits = []
    pieces = zip(cuts, cuts[1:], new_cuts, new_cuts[1:], strict=False)
    for start, stop, new_start, new_stop in pieces:
        old, new = before[start:stop], after[new_start:new_stop]
        head = _num_common(old, new)
        if head < max(len(old), len(new)):
            tail = _num_common(old[head:][::-1], new[head:][::-1])
            edits.append(Edit(start + head, stop - tail, new_start + head, new_stop - tail))
    return edits


def _cuts(token_ids: TokenArray, borders: TokenArray) -> list[int]:
    return [0, *np.flatnonzero(np.isin(token_ids, borders)).tolist(), len(token_ids)]


def _num_common(one: TokenArray, other: TokenArray) -> int:
    size = min(len(one), len(other))
    different = np.flatnonzero(one[:size] != other[:size])
    return int(different[0]) if len(different) else size


def _before(start: int, stop: int, edits: Sequence[Edit]) -> tuple[int, int]:
    """Give the span that became [start, stop); what begins or ends inside an edit takes all of that."""
    old_start, old_stop = start, stop
    for edit in edits:
        if edit.new_start <= start:
            old_start = edit.start if start < edit.new_stop else start - edit.new_stop + edit.stop
        if edit.new_start < stop:
            old_stop = edit.stop if stop <= edit.new_stop else stop - edit.new_stop + edit.stop
    return old_start, max(old_start, old_stop)
