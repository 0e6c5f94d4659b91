"""The rules in their order, and a run over those that are switched on.

Order is part of the registry; rules know nothing of one another. A rule is idempotent, and so is the whole run:
normalizing twice changes nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gateway.conversation import Conversation
from gateway.errors import InvalidRequestError, shown
from gateway.normalize.rule import Apply, Context, Mode, Params, Rule


@dataclass(frozen=True, slots=True)
class Choice:
    """How somebody wants a rule."""

    mode: Mode
    params: Params = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Normalized:
    """The canonical form and how it came about."""

    conversation: Conversation
    """What is forwarded."""
    fired: tuple[str, ...]
    """Names of the rules that changed something, in order."""
    audited: Conversation
    """What would be forwarded if the rules in audit mode were on: the same object where that makes no difference."""
    would_fire: tuple[str, ...] = ()
    """Names of the rules in audit mode that would have changed something."""


class RuleSet:
    """Rules that are on or in audit mode, ready to run.

    Attributes:
        on: names of those that are on.
        audit: names of those in audit mode.
    """

    def __init__(self, rules: Sequence[tuple[Rule, Apply, Mode]]) -> None:
        self._on = _without_superseded([(rule, apply) for rule, apply, mode in rules if mode is Mode.ON])
        self._all = _without_superseded([(rule, apply) for rule, apply, _ in rules])
        self.on = frozenset(name for name, _ in self._on)
        self.audit = frozenset(rule.name for rule, _, mode in rules if mode is Mode.AUDIT)

    def normalize(self, conversation: Conversation, context: Context = Context()) -> Normalized:  # noqa: B008 -- frozen
        """Apply every rule once."""
        canonical, fired = _run(self._on, conversation, context)
        if not self.audit:
            return Normalized(canonical, fired, canonical)
        audited, would_fire = _run(self._all, conversation, context)
        would_fire = tuple(name for name in would_fire if name in self.audit)
        differs = would_fire or not self.on <= {name for name, _ in self._all}
        return Normalized(canonical, fired, audited if differs else canonical, would_fire)


class RuleRegistry:
    """All rules there are."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        names = [rule.name for rule in rules]
        if len(set(names)) != len(names):
            raise ValueError(f"rules: got a name twice in {names}, wanted each once")
        self.rules = tuple(rules)

    def rule_set(self, choices: Mapping[str, Choice] | None = None) -> RuleSet:
        """Make the rules ready to run.

        Args:
            choices: rule name -> what is wanted of it; the others have their default mode.

        Raises: InvalidRequestError: no rule has this name, or a parameter is wrong.
        """
        choices = choices or {}
        self.check_names(choices)
        built = []
        for rule in self.rules:
            choice = choices.get(rule.name, Choice(rule.default))
            if choice.mode is not Mode.OFF:
                built.append((rule, rule.build(choice.params), choice.mode))
        return RuleSet(built)

    def check_names(self, names: Mapping[str, object]) -> None:
        """Refuse the name of a rule that does not exist.

        Raises: InvalidRequestError: which one.
        """
        known = [rule.name for rule in self.rules]
        for name in names:
            if name not in known:
                raise InvalidRequestError(
                    f"rules: got {shown(name)}, wanted names of rules: {', '.join(known)}", param=f"rules.{name}"
                )


def _without_superseded(rules: Sequence[tuple[Rule, Apply]]) -> list[tuple[str, Apply]]:
    superseded = {name for rule, _ in rules for name in rule.supersedes}
    return [(rule.name, apply) for rule, apply in rules if rule.name not in superseded]


def _run(
    rules: Sequence[tuple[str, Apply]], conversation: Conversation, context: Context
) -> tuple[Conversation, tuple[str, ...]]:
    fired = []
    for name, apply in rules:
        changed = apply(conversation, context)
        if changed is not conversation:  # `!=` would not see another order of keys
            fired.append(name)
            conversation = changed
    return conversation, tuple(fired)
