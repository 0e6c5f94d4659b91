"""The rule registry: what a rule is, and an ordered run over all of them.

A rule is pure and idempotent, and so is the whole run: normalizing twice changes nothing more. Order is part of the
registry; rules know nothing of one another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gateway.conversation import Conversation


class RuleClass(StrEnum):
    """How a rule is switched on."""

    SAFE = "safe"
    """On for everybody: it may change bytes the model sees, never meaning."""
    OPT_IN = "opt_in"
    """On where the operator asks for it."""
    STATEFUL = "stateful"
    """Needs memory of what was returned earlier."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One named way to bring a conversation nearer to its canonical form."""

    name: str
    version: int
    """Raised whenever the output changes."""
    rule_class: RuleClass
    apply: Callable[[Conversation], Conversation]
    """Pure and idempotent; gives back the same object where it has nothing to do."""


@dataclass(frozen=True, slots=True)
class Normalized:
    """The canonical form and how it came about."""

    conversation: Conversation
    fired: tuple[str, ...]
    """Names of the rules that changed something, in order."""


class RuleRegistry:
    """Rules in the order in which they run."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        names = [rule.name for rule in rules]
        if len(set(names)) != len(names):
            raise ValueError(f"rules: got a name twice in {names}, wanted each once")
        self.rules = tuple(rules)

    def without(self, names: Collection[str]) -> RuleRegistry:
        """Leave some rules out."""
        return RuleRegistry([rule for rule in self.rules if rule.name not in names])

    def normalize(self, conversation: Conversation) -> Normalized:
        """Apply every rule once."""
        fired = []
        for rule in self.rules:
            changed = rule.apply(conversation)
            if changed is not conversation and changed != conversation:
                fired.append(rule.name)
                conversation = changed
        return Normalized(conversation, tuple(fired))
