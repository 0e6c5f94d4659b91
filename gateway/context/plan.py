"""What of a history is sent: decided by sizes alone, by going through it from its beginning.

A conversation grows until a request would exceed the high watermark. Then it is cut to the low one, and grows again; in
between nothing that was sent before changes. Whoever sends the same history gets the same plan, with no memory of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
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
    num_tokens: int = 0
    """Of the head and those units as they came, by estimate, as all that follow."""
    num_away_tokens: int = 0
    """Of the units that are not sent any more."""
    num_sent_tokens: int = 0
    """Of what is sent without passages."""
    quote_tokens: int = 0
    """The most that the summary and all passages may take: what was left under the high watermark at the last cut."""

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
        self._borders = history.borders
        self._policy = policy
        self._room = room
        self._high, self._low = policy.watermarks(room, history.head_tokens)
        left = self._low - history.head_tokens
        self.passage_tokens = int(policy.passage_share * left)
        """For each user's turn behind a cut."""
        self.summary_tokens = 0 if policy.summary == "off" else int(policy.summary_share * left)
        self.is_summary_by_model = policy.summary == "model"
        self._looked_at, self._long = range(0), list[int]()  # messages, and those of them with documents, of one pass
        told = replace(
            policy, high=1.0, low=1.0, cut_above=0, summary_timeout_seconds=1.0
        )  # of which the marks are left
        deciding = repr((room, self._high, self._low, told)).encode()
        self.fingerprint = blake2b(deciding, digest_size=16).digest()
        """Of all that a plan follows from beside the history."""

    def plan(self, start: Plan = Plan(), stop: int | None = None) -> Plan:
        """Go through the history, from what is planned already to its end, or so many units."""
        self._looked_at, self._long = range(0), []
        history, units, plan = self._history, self._history.units, start
        stop = len(units) if stop is None else stop
        came, sent = plan.num_tokens, plan.num_sent_tokens
        if not plan.num_units:
            came = sent = history.head_tokens
        passages = self._passages_size(plan)
        for index in range(start.num_units, stop):
            came, sent = came + self._size_as_it_came(index), sent + self._size_as_sent_first(index)
            if plan.leaves_out and self._history.is_of_user(index):
                passages += self.passage_tokens
            needs_cut = sent + passages > self._high
            if needs_cut and (is_request_point(units, index) or self._is_too_long(index, sent + passages)):
                plan = self._cut(replace(plan, num_units=index + 1, num_sent_tokens=sent))
                sent, passages = plan.num_sent_tokens, self._passages_size(plan)
        return replace(plan, num_units=stop, num_tokens=came, num_sent_tokens=sent)

    def _is_too_long(self, index: int, size: int) -> bool:
        """Whether what ends with the beginning of an answer must be cut all the same."""
        return index + 1 == len(self._history.units) and size > self._room

    def before_cut(self, plan: Plan) -> Plan:
        """Plan as it was before the last cut, up to the last answer: what was sent and said, and is likely cached."""
        units = self._history.units
        num_units = next((num for num in range(plan.cut_at - 1, 0, -1) if not units[num - 1].is_of_user), 0)
        return replace(self.plan(stop=plan.cut_at - 1), num_units=num_units)

    def size(self, plan: Plan) -> int:
        """Estimate the tokens of what is sent, with the most that passages may take."""
        return plan.num_sent_tokens + self._passages_size(plan)

    def measured(self, plan: Plan) -> int:
        """Estimate as `size` does, from the parts: the running totals of a plan are held to it."""
        size = self._history.head_tokens + sum(self._unit_size(plan, index) for index in self._sent(plan))
        return size + (self.summary_tokens if plan.num_away else 0) + self._passages_size(plan)

    def _sent(self, plan: Plan) -> list[int]:
        pinned = [] if plan.pinned is None else [plan.pinned]
        return [*pinned, *range(plan.num_away, plan.num_units)]

    def _passages_size(self, plan: Plan) -> int:
        """Tell how much the passages may take: for each question since the last cut."""
        if not plan.leaves_out:
            return 0
        since = range(max(plan.question, plan.num_away), plan.num_units)
        num_questions = sum(self._history.is_of_user(index) for index in since)
        return self.passage_tokens * (num_questions + (plan.pinned is not None and plan.pinned >= plan.question))

    def _size_as_it_came(self, index: int) -> int:
        return self._total(self._history.sizes_as_they_came, index)

    def _size_as_sent_first(self, index: int) -> int:
        return self._total(self._history.sizes, index)

    def _total(self, sizes: Sequence[int], index: int) -> int:
        start, stop = self._borders[index], self._borders[index + 1]
        return sizes[start] if stop == start + 1 else sum(sizes[start:stop])

    def _unit_size(self, plan: Plan, index: int) -> int:
        return sum(self._message_size(plan, message) for message in self._messages_of(index))

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
        told = plan.num_sent_tokens - (self.summary_tokens if plan.num_away else 0)
        return self._without_gone(replace(plan, quote_tokens=max(0, self._high - told)))

    def _without_gone(self, plan: Plan) -> Plan:
        """Forget the places of what is not sent at all any more, so that a plan stays small."""
        pinned = range(0) if plan.pinned is None else self._messages_of(plan.pinned)
        start = self._sent_messages(plan).start
        if not plan.cleared and not plan.stubbed:
            return plan
        return replace(
            plan,
            cleared=frozenset(index for index in plan.cleared if index >= start or index in pinned),
            stubbed=frozenset(place for place in plan.stubbed if place.message >= start or place.message in pinned),
        )

    def _messages_of(self, index: int) -> range:
        return range(self._borders[index], self._borders[index + 1])

    def _last_question(self, plan: Plan) -> int:
        """Find the last user's turn, or the end where there is none."""
        return next(
            (index for index in reversed(range(plan.num_units)) if self._history.is_of_user(index)), plan.num_units
        )

    def _clear(self, plan: Plan, excess: int) -> Plan:
        """Clear results of tools, the oldest first."""
        results = [index for index in self._results(plan) if index not in plan.cleared]
        gains = {index: self._message_size(plan, index) - PLACEHOLDER_TOKENS for index in results}
        candidates = [index for index in results if gains[index] > 0]
        if not candidates or sum(gains[index] for index in candidates) < self._policy.clear_at_least:
            return plan
        cleared, gained = set(plan.cleared), 0
        for index in candidates:
            if gained >= max(excess, self._policy.clear_at_least):
                break
            cleared.add(index)
            gained += gains[index]
        return replace(plan, cleared=frozenset(cleared), num_sent_tokens=plan.num_sent_tokens - gained)

    def _results(self, plan: Plan) -> list[int]:
        """Give the results that may be cleared."""
        names, sent, all_results = self._history.tool_names, self._sent_messages(plan), self._history.results
        results = all_results[bisect_left(all_results, sent.start) : bisect_left(all_results, sent.stop)]
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
        if not gained:
            return plan
        return replace(plan, stubbed=frozenset(stubbed), num_sent_tokens=plan.num_sent_tokens - gained)

    def _documents(self, plan: Plan) -> Iterator[Document]:
        sent = self._sent_messages(plan)
        if sent.start < self._looked_at.start or not self._looked_at:
            self._looked_at, self._long = range(sent.start, sent.start), []
        new = range(self._looked_at.stop, sent.stop)
        self._long += [index for index in new if self._history.documents_of(index)]
        self._looked_at = range(self._looked_at.start, sent.stop)
        for index in self._long[bisect_left(self._long, sent.start) : bisect_left(self._long, sent.stop)]:
            if index not in plan.cleared and not self._is_all_question(plan, index):
                yield from (found for found in self._history.documents_of(index) if found.place not in plan.stubbed)

    def _is_all_question(self, plan: Plan, index: int) -> bool:
        """Whether a message is the last user's, and nothing of it would be left without its documents."""
        if index != self._borders[plan.question]:
            return False
        texts = sum(map(len, texts_of(self._history.messages[index].content)))
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
        gone, num_away, away = 0, plan.num_away, plan.num_away_tokens
        while gone < excess and num_away < plan.num_units - num_kept:
            gone += self._unit_size(plan, num_away)
            away += self._size_as_it_came(num_away)
            num_away += 1
        if num_away == plan.num_away:
            return plan
        while self._is_system_before_user(num_away, plan.num_units):
            gone += self._unit_size(plan, num_away)
            away += self._size_as_it_came(num_away)
            num_away += 1
        pinned = self._pinned(plan, num_away)
        sent = plan.num_sent_tokens - gone + (0 if plan.num_away else self.summary_tokens)
        sent += self._pinned_size(plan, pinned) - self._pinned_size(plan, plan.pinned)
        return replace(plan, num_away=num_away, pinned=pinned, num_away_tokens=away, num_sent_tokens=sent)

    def _is_system_before_user(self, index: int, stop: int) -> bool:
        """Whether a unit is a system turn, and so are those behind it up to a user's: first, it would pass for the head."""
        roles = (self._history.messages[self._borders[number]].role for number in range(index, stop))
        return (
            next(roles, "") in SYSTEM_ROLES and next((role for role in roles if role not in SYSTEM_ROLES), "") == "user"
        )

    def _pinned(self, plan: Plan, num_away: int) -> int | None:
        """Find the question that the first answer that is sent belongs to."""
        if self._history.is_of_user(num_away):
            return None
        newly_away = reversed(range(plan.num_away, num_away))
        return next((index for index in newly_away if self._history.is_of_user(index)), plan.pinned)

    def _pinned_size(self, plan: Plan, pinned: int | None) -> int:
        return 0 if pinned is None else self._unit_size(plan, pinned)

    def _sent_messages(self, plan: Plan) -> range:
        """Give the messages of all units that are not away."""
        return range(self._borders[plan.num_away], self._borders[plan.num_units])
