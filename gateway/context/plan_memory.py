"""Plans of earlier requests, so that the next one goes on from where its history was planned already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gateway.context.beginnings import Beginnings
from gateway.context.history import History
from gateway.context.plan import Plan, Planner
from gateway.normalize.memory import TurnMemory

_MAX_LOOKS = 24
"""Ends that are looked for, from the last one backward: a client adds a few messages, and may take some back."""


@dataclass(frozen=True, slots=True)
class _Known:
    plan: Plan
    names: Mapping[int, bytes]
    """Of beginnings that texts of the plan are remembered by."""


class PlanMemory:
    """The plans of one scope. What is forgotten is planned again, with the same result.

    Args:
        memory: of what was derived.
        scope: whose it is.
    """

    def __init__(self, memory: TurnMemory, scope: str) -> None:
        self._memory = memory
        self._scope = scope

    def recall(self, history: History, planner: Planner, beginnings: Beginnings) -> Plan:
        """Find the plan of the longest beginning that is remembered; where nothing is, the one of no beginning."""
        ends = list(_ends(history))
        names = {end: beginnings.name(end) for end in reversed(ends)}  # each goes on from the one before
        for end in ends:
            known: _Known | None = self._memory.find(self._scope, _key(planner, names[end]))
            if known is not None:
                beginnings.learn(known.names)
                return known.plan
        return Plan()

    def keep(self, history: History, planner: Planner, beginnings: Beginnings, plan: Plan) -> None:
        """Remember the plan of a whole history."""
        key = _key(planner, beginnings.name(len(history.messages)))
        self._memory.keep(self._scope, key, _Known(plan, beginnings.asked_for))


def _ends(history: History) -> Iterator[int]:
    """Give, from the last one backward, the numbers of messages that an earlier request may have had.

    A request ends where an answer comes next: there its last turn is whole, and it was cut where it would be cut today. One
    that ended with the beginning of an answer was not cut there, and would be where another answer follows.
    """
    messages = history.messages
    yield len(messages)
    num_looks = 1
    for end in range(len(messages) - 1, history.num_head, -1):
        if messages[end].role == "assistant" and messages[end - 1].role != "assistant":
            yield end
            num_looks += 1
            if num_looks == _MAX_LOOKS:
                return


def _key(planner: Planner, name: bytes) -> bytes:
    return b"plan" + planner.fingerprint + name
