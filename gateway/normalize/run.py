"""A run over rules in their order. Those that look at one region at a time meet a known head only once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from gateway.conversation import Conversation
from gateway.normalize.head_memo import HeadMemo, join_head, split_head
from gateway.normalize.rule import Apply, Context


class Runnable(NamedTuple):
    """A rule with an operator's parameters."""

    name: str
    apply: Apply
    by_region: bool


class Step(NamedTuple):
    """One rule that fired."""

    rule: str
    before: Conversation
    after: Conversation


@dataclass(frozen=True, slots=True)
class KnownHead:
    """A head as it came first, and what some rules made of it."""

    head: Conversation
    """Of system messages and tools only."""
    changes: tuple[tuple[int, Conversation], ...]
    """Place of a rule that fired -> what it made of the head, in order."""


@dataclass(frozen=True, slots=True)
class Run:
    """What rules made of a conversation."""

    conversation: Conversation
    """The last step's; without any, as it came."""
    steps: tuple[Step, ...]

    @property
    def fired(self) -> tuple[str, ...]:
        """Names of the rules that changed something, in order."""
        return tuple(step.rule for step in self.steps)


class Runner:
    """Rules in their order, over a memo that others may share."""

    def __init__(self, rules: Sequence[Runnable], signature: str, memo: HeadMemo[KnownHead]) -> None:
        """Take rules.

        Args:
            rules: in order.
            signature: equal only for equal rules with equal parameters.
            memo: of heads.
        """
        self._by_region = list(takewhile(lambda rule: rule.by_region, rules))
        self._others = rules[len(self._by_region) :]
        self._signature = signature
        self._memo = memo

    def run(self, conversation: Conversation, context: Context) -> Run:
        """Apply every rule once."""
        head, turns = split_head(conversation)
        known = self._memo.know((self._signature, context.scope), head, lambda head: self._change(head, context))
        conversation = join_head(known.head, turns)
        steps = [*self._region_steps(conversation, known, turns, context)]
        for rule in self._others:
            before = steps[-1].after if steps else conversation
            after = rule.apply(before, context)
            if after is not before:
                steps.append(Step(rule.name, before, after))
        return Run(steps[-1].after if steps else conversation, tuple(steps))

    def _change(self, head: Conversation, context: Context) -> KnownHead:
        changes, current = [], head
        for place, rule in enumerate(self._by_region):
            changed = rule.apply(current, context)
            if changed is not current:
                changes.append((place, changed))
                current = changed
        return KnownHead(head, tuple(changes))

    def _region_steps(
        self, conversation: Conversation, known: KnownHead, turns: Conversation, context: Context
    ) -> Iterator[Step]:
        head, changes = known.head, dict(known.changes)
        for place, rule in enumerate(self._by_region):
            changed_head, changed_turns = changes.get(place, head), rule.apply(turns, context)
            if changed_head is head and changed_turns is turns:
                continue
            head, turns = changed_head, changed_turns
            after = join_head(head, turns)
            yield Step(rule.name, conversation, after)
            conversation = after
