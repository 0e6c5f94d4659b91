"""What is quoted of all that is not sent: a summary of older turns, and passages where a question needs them.

It follows from the history and the plan, and is remembered by what it follows from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from gateway.context.history import History, Place
from gateway.context.placeholders import summary_block
from gateway.context.plan import Plan, Planner
from gateway.context.summary import Summary
from gateway.context.units import Counter, Unit
from gateway.conversation import texts_of


class Archive(Protocol):
    """What is not sent any more, ready to be searched."""

    def passages(self, question: str, budget: int) -> str:
        """Print what answers a question best, in at most so many tokens; empty: nothing does."""
        ...


class Texts(Protocol):
    """What was derived before, by what it follows from: passages are texts, summaries say who wrote them."""

    def find(self, key: bytes) -> Any:
        """Return what was kept; None: nothing was, or it is forgotten."""
        ...

    def keep(self, key: bytes, value: str | Summary) -> None:
        """Remember it."""
        ...


@dataclass(frozen=True, slots=True)
class Sources:
    """Where quotes come from."""

    find_archive: Callable[[bytes, Callable[[], Sequence[tuple[str, str]]]], Archive]
    """Gives the archive of a cut by its name; where it must be made, of documents, each a name and a text in order."""
    summarize: Callable[[Sequence[str], int], str]
    """Tells texts in at most so many tokens."""
    texts: Texts


class Quotes:
    """Of one history.

    Args:
        history: measured.
        planner: of the same history.
        digests: see `Beginnings`.
        count: see `Counter`.
        sources: see there.
    """

    def __init__(
        self, history: History, planner: Planner, digests: Sequence[bytes], count: Counter, sources: Sources
    ) -> None:
        self._history = history
        self._planner = planner
        self._digests = digests
        self._count = count
        self._sources = sources

    def passages(self, plan: Plan, units: Sequence[Unit], room: int) -> tuple[dict[int, str], int]:
        """Find, for each question since the last cut, what of the archive it needs; by message. And what they cost.

        Questions behind take what those before them left: so those are the same in every request.
        """
        found: dict[int, str] = {}
        archive: Archive | None = None
        left, texts = room, self._sources.texts
        for unit in units:
            if not unit.is_of_user or unit.start < self._history.units[plan.question].start:
                continue
            budget = min(self._planner.passage_tokens, left)
            key = b"passages %d " % budget + self._key(plan) + self._digests[unit.start - self._history.num_head + 1]
            text = texts.find(key)
            if text is None:
                archive = archive or self._sources.find_archive(self._key(plan), partial(self._left_out, plan))
                text = archive.passages(self._history.question_of(unit.start, plan.stubbed), budget)
                texts.keep(key, text)
            if text and self.cost(text) <= left:
                left -= self.cost(text)
                found[unit.start] = text
        return found, room - left

    def summary(self, plan: Plan, room: int) -> Summary:
        """Find or write what stands in the place of the turns that are put away; empty: nothing does."""
        budget = self.summary_tokens(plan, room)
        if budget <= 0:
            return Summary("")
        key = self.summary_key(plan)
        summary: Summary | None = self._sources.texts.find(key)
        if summary is None:
            summary = Summary(self.extract(plan, budget))
            if not self._planner.is_summary_by_model:  # else this one only stands in, until the model is asked
                self._sources.texts.keep(key, summary)
        return summary

    def knows_summary(self, plan: Plan) -> bool:
        """Whether the summary of the last cut is remembered."""
        return self._sources.texts.find(self.summary_key(plan)) is not None

    def summary_key(self, plan: Plan) -> bytes:
        """Name the summary of the last cut; who is to write it is part of the policy, and so of the name."""
        return b"summary" + self._key(plan)

    def summary_tokens(self, plan: Plan, room: int) -> int:
        """Tell how long the summary of the last cut may be."""
        return min(self._planner.summary_tokens, room - self.cost(summary_block(""))) if plan.num_away else 0

    def extract(self, plan: Plan, budget: int) -> str:
        """Quote what says most of the turns that are put away."""
        away = [text for index in self._away(plan) for text in texts_of(self._history.messages[index].content)]
        return self._sources.summarize(away, budget)

    def cost(self, block: str) -> int:
        """Count what a text takes in front of another."""
        return self._count(in_front(block, ""))

    def _key(self, plan: Plan) -> bytes:
        """Name the last cut: the history up to it, and what decided about it."""
        return self._planner.fingerprint + self._digests[self._history.borders[plan.cut_at] - self._history.num_head]

    def _away(self, plan: Plan) -> list[int]:
        """Give the messages in whose place the summary stands."""
        borders = self._history.borders
        pinned = range(0) if plan.pinned is None else range(borders[plan.pinned], borders[plan.pinned + 1])
        return [index for index in range(borders[0], borders[plan.num_away]) if index not in pinned]

    def _left_out(self, plan: Plan) -> list[tuple[str, str]]:
        """Give everything that is not sent as it came, up to the last cut, in the order of the history."""
        history, borders = self._history, self._history.borders
        until_cut = range(borders[plan.num_away], borders[plan.cut_at])
        whole = {*self._away(plan), *plan.cleared}
        whole.update(index for index in until_cut if history.shortened[index].text)
        found: list[tuple[str, str]] = []
        for index in sorted(whole.union(place.message for place in plan.stubbed)):
            texts = texts_of(history.messages[index].content)
            if index in whole:
                found += [(Place(index, number).document, text) for number, text in enumerate(texts)]
            else:
                found += [
                    (entry.place.document, texts[entry.place.text][entry.start : entry.stop])
                    for entry in history.documents_at(index, plan.stubbed)
                ]
        return found


def in_front(block: str, text: str) -> str:
    """Put a quote before a text."""
    return f"{block}\n{text}"
