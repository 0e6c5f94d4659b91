"""Which tokens of a prompt each rule changed.

Prompts before and after a rule are compared piece by piece, cut at the special tokens that a template writes between
turns; in a piece that differs, everything between the common start and the common end counts as changed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gateway.tokenizer import TokenArray

BorderTable = npt.NDArray[np.bool_]


def border_table(special_ids: Collection[int]) -> BorderTable:
    """Tell special tokens from others by indexing; ids beyond the table count as its last one, which is none."""
    table = np.zeros(max(special_ids, default=0) + 2, dtype=np.bool_)
    table[list(special_ids)] = True
    return table


class Edit(NamedTuple):
    """Tokens [start, stop) became tokens [new_start, new_stop)."""

    start: int
    stop: int
    new_start: int
    new_stop: int


class Change(NamedTuple):
    """What one rule did at one place, told in the tokens before all rules and in those after all of them."""

    rule: str
    place: Edit


def changes_of(prompts: Sequence[TokenArray], rules: Sequence[str], borders: BorderTable) -> list[Change]:
    """Tell what each rule changed.

    Args:
        prompts: before all rules, and then after each.
        rules: their names in order, one fewer.
        borders: see `edits_between`.
    """
    steps = [edits_between(before, after, borders) for before, after in pairwise(prompts)]
    changes = []
    for number, (rule, edits) in enumerate(zip(rules, steps, strict=True)):
        for start, stop, new_start, new_stop in edits:
            for step in reversed(steps[:number]):
                start, stop = _moved(start, stop, [Edit(*edit[2:], *edit[:2]) for edit in step])
            for step in steps[number + 1 :]:
                new_start, new_stop = _moved(new_start, new_stop, step)
            changes.append(Change(rule, Edit(start, stop, new_start, new_stop)))
    return changes


def edits_between(before: TokenArray, after: TokenArray, borders: BorderTable) -> list[Edit]:
    """Compare two prompts; the edits are in order and do not overlap.

    Args:
        before: [num_tokens], int32.
        after: the same of the other prompt.
        borders: [up to vocab_size], bool: which ids are special tokens, the last one not.
    """
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


def _cuts(token_ids: TokenArray, borders: BorderTable) -> list[int]:
    is_border = borders[np.minimum(token_ids, len(borders) - 1)]
    return [0, *np.flatnonzero(is_border).tolist(), len(token_ids)]


def _num_common(one: TokenArray, other: TokenArray) -> int:
    size = min(len(one), len(other))
    different = np.flatnonzero(one[:size] != other[:size])
    return int(different[0]) if len(different) else size


def _moved(start: int, stop: int, edits: Sequence[Edit]) -> tuple[int, int]:
    """Give what [start, stop) became; what begins or ends inside an edit takes all of that."""
    new_start, new_stop = start, stop
    for edit in edits:
        if edit.start <= start:
            new_start = edit.new_start if start < edit.stop else start - edit.stop + edit.new_stop
        if edit.start < stop:
            new_stop = edit.new_stop if stop <= edit.stop else stop - edit.stop + edit.new_stop
    return new_start, max(new_start, new_stop)
