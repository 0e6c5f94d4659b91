"""What of a history is sent: decided by sizes alone, by going through it from its beginning.

A conversation grows until a request would exceed the high watermark. Then it is cut to the low one, and grows again; in
between nothing that was sent before changes. Whoever sends the same history gets the same plan, with no memory of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b

from gateway.context.history import Document, History, Place
from gateway.context.policy import ContextPolicy
from gateway.context.units import is_request_point
from gateway.conversation import SYSTEM_ROLES, texts_of

PLACEHOLDER_TOKENS = 40
"""What stands where something was takes about so many."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is sent of the first units of a history. Holds places, never texts: small to keep."""

    num_units: int = 0
    """Decided for so many."""
    cut_at: int = 0
    """Units at the last cut; 0: nothing was cut."""
    question: int = 0
    """The last user's turn at that time: it gets passages of what is left out, and so do those behind it."""
    num_away: int = 0
    """The first units, which are not sent any more; a summary stands in their place."""
    pinned: int | None = None
    """The last user's turn among them, where an answer follows: it is sent nevertheless."""
    cleared: frozenset[int] = frozenset()
    """Messages of tools whose result is not sent any more."""
    stubbed: frozenset[Place] = frozenset()
    """Documents that are not sent as a whole any more."""

    @property
    def leaves_out(self) -> bool:
        """Whether something is not sent that a question may need."""
        return bool(self.num_away or self.cleared or self.stubbed)


class Planner:
    """Plans one history.

    Args:
        history: measured.
        policy: how it is cut.
        room: most tokens that a prompt may have.
    """

    def __init__(self, history: History, policy: ContextPolicy, room: int) -> None:
        self._history = history
        self._policy = policy
        self._high, self._low = policy.watermarks(room)
        self.passage_tokens = int(policy.passage_share * self._low)
        """For each user's turn behind a cut."""
        self.summary_tokens = 0 if policy.summary == "off" else int(policy.summary_share * self._low)
        self.fingerprint = blake2b(repr((policy, room)).encode(), digest_size=16).digest()
        """Of all that a plan follows from beside the history."""

    def plan(self, start: Plan = Plan()) -> Plan:
        """Go through the history, from what is planned already to its end."""
        plan, units = start, self._history.units
        size = self.size(plan)
        for index in range(start.num_units, len(units)):
            plan = replace(plan, num_units=index + 1)
            size += self._unit_size(plan, index)
            if size > self._high and is_request_point(units, index):
                plan = self._cut(plan)
                size = self.size(plan)
        return plan

    def size(self, plan: Plan) -> int:
        """Estimate the tokens of what is sent."""
        sent = range(plan.num_away, plan.num_units)
        size = self._history.head_tokens + sum(self._unit_size(plan, index) for index in sent)
        if plan.num_away:
            size += self.summary_tokens
        if plan.pinned is not None:
            size += self._unit_size(plan, plan.pinned)
        return size

    def _unit_size(self, plan: Plan, index: int) -> int:
        unit = self._history.units[index]
        size = sum(self._message_size(plan, unit.start + offset) for offset in range(len(unit.messages)))
        gets_passages = plan.leaves_out and unit.is_of_user and index >= plan.question
        return size + (self.passage_tokens if gets_passages else 0)

    def _message_size(self, plan: Plan, index: int) -> int:
        size = self._history.sizes[index]
        if index in plan.cleared:
            return min(size, PLACEHOLDER_TOKENS)
        if plan.stubbed:
            for document in self._history.documents_of(index):
                if document.place in plan.stubbed:
                    size += PLACEHOLDER_TOKENS - document.num_tokens
        return size

    def _cut(self, plan: Plan) -> Plan:
        """Leave out as much as it takes, in the order of what is missed least."""
        target = self._low - self.passage_tokens
        plan = replace(plan, cut_at=plan.num_units, question=self._last_question(plan))
        for step in (self._clear, self._stub, self._put_away, self._drop):
            excess = self.size(plan) - target
            if excess <= 0:
                break
            plan = step(plan, excess)
        return plan

    def _last_question(self, plan: Plan) -> int:
        """Find the last user's turn, or the end where there is none."""
        units = self._history.units
        return next((index for index in reversed(range(plan.num_units)) if units[index].is_of_user), plan.num_units)

    def _clear(self, plan: Plan, excess: int) -> Plan:
        """Clear results of tools, the oldest first."""
        results = [index for index in self._results(plan) if index not in plan.cleared]
        gains = {index: self._message_size(plan, index) - PLACEHOLDER_TOKENS for index in results}
        candidates = [index for index in results if gains[index] > 0]
        if sum(gains[index] for index in candidates) < self._policy.clear_at_least:
            return plan
        cleared, gained = set(plan.cleared), 0
        for index in candidates:
            if gained >= max(excess, self._policy.clear_at_least):
                break
            cleared.add(index)
            gained += gains[index]
        return replace(plan, cleared=frozenset(cleared))

    def _results(self, plan: Plan) -> list[int]:
        """Give the results that may be cleared."""
        names = self._history.tool_names
        results = [index for index in self._sent_messages(plan) if self._history.messages[index].role == "tool"]
        old = results[: max(0, len(results) - self._policy.keep_tool_results)]
        return [index for index in old if names[index] not in self._policy.exclude_tools]

    def _stub(self, plan: Plan, excess: int) -> Plan:
        """Take documents out, the oldest first."""
        stubbed, gained = set(plan.stubbed), 0
        for document in self._documents(plan):
            if gained >= excess:
                break
            stubbed.add(document.place)
            gained += document.num_tokens - PLACEHOLDER_TOKENS
        return replace(plan, stubbed=frozenset(stubbed))

    def _documents(self, plan: Plan) -> Iterator[Document]:
        for index in self._sent_messages(plan):
            if index not in plan.cleared and not self._is_all_question(plan, index):
                yield from (found for found in self._history.documents_of(index) if found.place not in plan.stubbed)

    def _is_all_question(self, plan: Plan, index: int) -> bool:
        """Whether a message is the last user's, and nothing of it would be left without its documents."""
        units = self._history.units
        if plan.question == len(units) or index != units[plan.question].start:
            return False
        texts = sum(map(len, texts_of(units[plan.question].messages[0].content)))
        return texts == sum(found.stop - found.start for found in self._history.documents_of(index))

    def _put_away(self, plan: Plan, excess: int) -> Plan:
        """Leave out the oldest turns, but for the last ones; a summary takes their place."""
        return self._without_first(
            plan, excess + (0 if plan.num_away else self.summary_tokens), self._policy.keep_units
        )

    def _drop(self, plan: Plan, excess: int) -> Plan:
        """Leave out all but the last turn."""
        return self._without_first(plan, excess, 1)

    def _without_first(self, plan: Plan, excess: int, num_kept: int) -> Plan:
        gone, num_away = 0, plan.num_away
        while gone < excess and num_away < plan.num_units - num_kept:
            gone += self._unit_size(plan, num_away)
            num_away += 1
        if num_away == plan.num_away:
            return plan
        num_away, pinned = self._beginning(num_away, plan.num_units)
        return replace(plan, num_away=num_away, pinned=pinned)

    def _beginning(self, num_away: int, num_units: int) -> tuple[int, int | None]:
        """Let what is sent begin with a user's turn, and tell which one is pinned: the last one, where an answer follows.

        System turns before a user's go away too: in front they would pass for a part of the head.
        """
        units = self._history.units
        roles = ((index, units[index].messages[0].role) for index in range(num_away, num_units))
        first, role = next((found for found in roles if found[1] not in SYSTEM_ROLES), (num_away, ""))
        if role == "user":
            return first, None
        return num_away, next((index for index in reversed(range(num_away)) if units[index].is_of_user), None)

    def _sent_messages(self, plan: Plan) -> Iterator[int]:
        for unit in self._history.units[plan.num_away : plan.num_units]:
            yield from range(unit.start, unit.start + len(unit.messages))
