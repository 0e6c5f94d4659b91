"""The rules in their order, and a run over those that are switched on.

Order is part of the registry; rules know nothing of one another. A rule is idempotent, and so is the whole run:
normalizing twice changes nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import orjson

from gateway.conversation import Conversation
from gateway.errors import InvalidRequestError
from gateway.normalize.head_memo import HeadMemo
from gateway.normalize.rule import Apply, Context, Mode, Params, Rule, RuleClass
from gateway.normalize.run import KnownHead, Runnable, Runner, Step


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
    steps: tuple[Step, ...] = ()
    """What each rule that fired changed, in order."""


class RuleSet:
    """Rules that are on or in audit mode, ready to run.

    Attributes:
        on: names of those that are on.
        audit: names of those in audit mode.
        lacking: names of the safe ones that are not on.
    """

    def __init__(self, rules: Sequence[tuple[Rule, Params, Mode]], memo: HeadMemo[KnownHead]) -> None:
        """Build the rules; safe ones that are off are taken to know what they would do.

        Raises: InvalidRequestError: a parameter is wrong.
        """
        self.on = frozenset(rule.name for rule, _, mode in rules if mode is Mode.ON)
        self.audit = frozenset(rule.name for rule, _, mode in rules if mode is Mode.AUDIT)
        self._params = {rule.name: params for rule, params, _ in rules}
        safe = frozenset(rule.name for rule, _, _ in rules if rule.rule_class is RuleClass.SAFE)
        self.lacking = safe - self.on
        self._best = [(rule, params) for rule, params, _ in rules if rule.name in self.on | safe]
        self._memo = memo
        built = [(rule, rule.build(params), params, mode) for rule, params, mode in rules if mode is not Mode.OFF]
        built = [entry for entry in built if entry[0].rule_class is not RuleClass.CONTEXT]
        self._run_all = _runner([(rule, apply, params) for rule, apply, params, _ in built], memo)
        self._run_on = _runner([(rule, apply, params) for rule, apply, params, mode in built if mode is Mode.ON], memo)

    def mode_of(self, name: str) -> Mode:
        """Return how a rule runs here."""
        return Mode.ON if name in self.on else Mode.AUDIT if name in self.audit else Mode.OFF

    def params_of(self, name: str) -> Params:
        """Return the parameters of a rule that is not off."""
        return self._params[name]

    def steps(self, conversation: Conversation, context: Context) -> tuple[Step, ...]:
        """Apply every rule once, those in audit mode too; return what each that fired changed, in order."""
        return self._run_all.run(conversation, context).steps

    def best(self, conversation: Conversation, context: Context) -> Conversation:
        """Apply the rules that are on and all safe ones; the same object where the safe ones that lack do nothing."""
        if not self.lacking:
            return conversation
        run = self._run_best.run(conversation, context)
        return conversation if self.lacking.isdisjoint(run.fired) else run.conversation

    @cached_property
    def _run_best(self) -> Runner:
        return _runner([(rule, rule.build(params), params) for rule, params in self._best], self._memo)

    def normalize(self, conversation: Conversation, context: Context = Context()) -> Normalized:  # noqa: B008 -- frozen
        """Apply every rule once."""
        run = self._run_on.run(conversation, context)
        canonical = run.conversation
        if not self.audit:
            return Normalized(canonical, run.fired, canonical, steps=run.steps)
        audit = self._run_all.run(conversation, context)
        would_fire = tuple(name for name in audit.fired if name in self.audit)
        audited = canonical if audit.fired == run.fired else audit.conversation  # a rule that supersedes may not fire
        return Normalized(canonical, run.fired, audited, would_fire, run.steps)


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
        wanted = [
            (rule, _params(rule, choice), choice.mode)
            for rule, choice in chosen
            if choice.mode is not Mode.OFF or rule.rule_class is RuleClass.SAFE
        ]
        return RuleSet(wanted, self._memo)

    def check_names(self, names: Mapping[str, object]) -> None:
        """Refuse the name of a rule that does not exist.

        Raises: InvalidRequestError: which one.
        """
        known = [rule.name for rule in self.rules]
        for name in names:
            if name not in known:
                raise InvalidRequestError(
                    f"rules.{name}: unknown, wanted one of {', '.join(known)}", param=f"rules.{name}"
                )


def _params(rule: Rule, choice: Choice) -> Params:
    return choice.params or (rule.audit_params if choice.mode is Mode.AUDIT else {})


def _runner(rules: Sequence[tuple[Rule, Apply, Params]], memo: HeadMemo[KnownHead]) -> Runner:
    superseded = {name for rule, _, _ in rules for name in rule.supersedes}
    rules = [entry for entry in rules if entry[0].name not in superseded]
    signature = orjson.dumps([(rule.name, rule.version, dict(params)) for rule, _, params in rules]).decode()
    return Runner([Runnable(rule.name, apply, rule.by_region) for rule, apply, _ in rules], signature, memo)
