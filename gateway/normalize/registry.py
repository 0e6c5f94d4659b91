"""The rules in their order, and a run over those that are switched on.

Order is part of the registry; rules know nothing of one another. A rule is idempotent, and so is the whole run:
normalizing twice changes nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from gateway.conversation import Conversation, body_of
from gateway.errors import InvalidRequestError, shown
from gateway.normalize.head_memo import HeadMemo
from gateway.normalize.rule import Apply, Context, Mode, Params, Rule
from gateway.normalize.run import KnownHead, Run, Runnable, Runner, Step


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
    """Rules that are on or in audit mode, ready to run."""

    def __init__(self, rules: Sequence[tuple[Rule, Params, Mode]], memo: HeadMemo[KnownHead]) -> None:
        """Build the rules.

        Raises: InvalidRequestError: a parameter is wrong.
        """
        built = [(rule, rule.build(params), params, mode) for rule, params, mode in rules]
        self._modes = {rule.name: mode for rule, _, mode in rules}
        self._audit = frozenset(rule.name for rule, _, mode in rules if mode is Mode.AUDIT)
        self._all = _runner([(rule, apply, params) for rule, apply, params, _ in built], memo)
        self._on = _runner([(rule, apply, params) for rule, apply, params, mode in built if mode is Mode.ON], memo)

    def mode_of(self, name: str) -> Mode:
        """Return how a rule runs here."""
        return self._modes.get(name, Mode.OFF)

    def steps(self, conversation: Conversation, context: Context) -> tuple[Step, ...]:
        """Apply every rule once, those in audit mode too; return what each that fired changed, in order."""
        return self._all.run(conversation, context).steps

    def normalize(self, conversation: Conversation, context: Context = Context()) -> Normalized:  # noqa: B008 -- frozen
        """Apply every rule once."""
        run = self._on.run(conversation, context)
        canonical = run.conversation
        if not self._audit:
            return Normalized(canonical, run.fired, canonical)
        audit = self._all.run(conversation, context)
        would_fire = tuple(name for name in audit.fired if name in self._audit)
        audited = canonical if _is_same(audit, run) else audit.conversation
        return Normalized(canonical, run.fired, audited, would_fire)


class RuleRegistry:
    """All rules there are."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        names = [rule.name for rule in rules]
        if len(set(names)) != len(names):
            raise ValueError(f"rules: got a name twice in {names}, wanted each once")
        self.rules = tuple(rules)
        self._memo = HeadMemo[KnownHead]()

    def rule_set(self, choices: Mapping[str, Choice] | None = None) -> RuleSet:
        """Make the rules ready to run.

        Args:
            choices: rule name -> what is wanted of it; the others have their default mode.

        Raises: InvalidRequestError: no rule has this name, or a parameter is wrong.
        """
        choices = choices or {}
        self.check_names(choices)
        chosen = [(rule, choices.get(rule.name, Choice(rule.default))) for rule in self.rules]
        wanted = [(rule, choice.params, choice.mode) for rule, choice in chosen if choice.mode is not Mode.OFF]
        return RuleSet(wanted, self._memo)

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


def _runner(rules: Sequence[tuple[Rule, Apply, Params]], memo: HeadMemo[KnownHead]) -> Runner:
    signature = orjson.dumps([(rule.name, rule.version, dict(params)) for rule, _, params in rules]).decode()
    return Runner([Runnable(rule.name, apply, rule.by_region) for rule, apply, _ in rules], signature, memo)


def _is_same(audit: Run, run: Run) -> bool:
    """Whether the rules in audit mode make no difference; equal dicts may still be printed differently."""
    if audit.fired == run.fired:
        return True
    return orjson.dumps(body_of(audit.conversation)) == orjson.dumps(body_of(run.conversation))
