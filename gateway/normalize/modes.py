"""Which rules run for whom: the modes that operators chose, by tenant and route. Holds them, stores nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gateway.errors import InvalidRequestError
from gateway.normalize.registry import Choice, RuleRegistry, RuleSet
from gateway.normalize.rule import Mode, refuse_others

EVERY = "*"
"""As a tenant or route: every one. As a rule: all that are on by default."""

_MAX_RULE_SETS = 1024


class Place(NamedTuple):
    """What a choice is for."""

    tenant: str
    route: str
    rule: str


class RuleModes:
    """Resolves choices: a tenant's beat those for every tenant, then a route's those for every route, then a rule's `*`."""

    def __init__(self, registry: RuleRegistry, choices: Mapping[Place, Choice] | None = None) -> None:
        self.registry = registry
        self._choices: Mapping[Place, Choice] = choices or {}
        self._rule_sets: dict[tuple[str, str], RuleSet] = {}

    @property
    def choices(self) -> Mapping[Place, Choice]:
        """What is in force beside the defaults."""
        return self._choices

    def check(self, place: Place, choice: Choice) -> None:
        """Refuse a choice that could not run.

        Raises: InvalidRequestError: no rule has the name, or a parameter is wrong.
        """
        if place.rule != EVERY:
            needs_none = choice.mode is Mode.OFF and not choice.params
            self.registry.rule_set({place.rule: choice if needs_none else Choice(Mode.ON, choice.params)})
        elif choice.params:
            refuse_others(choice.params, ())

    def check_named(self, place: Place, choice: Choice) -> None:
        """Refuse a choice among several: as `check`, with the rule in front of the parameter's name."""
        try:
            self.check(place, choice)
        except InvalidRequestError as error:
            if not (error.param or "").startswith("params"):
                raise
            field = f"rules.{place.rule}"
            raise InvalidRequestError(f"{field}.{error}", param=f"{field}.{error.param}") from error

    def replace(self, choices: Mapping[Place, Choice]) -> None:
        """Put other choices in force, for every request that comes from now on."""
        self._choices = choices
        self._rule_sets = {}

    def rule_set(
        self,
        tenant: str,
        route: str,
        overrides: Mapping[str, Choice] | None = None,
        *,
        only: frozenset[str] | None = None,
    ) -> RuleSet:
        """Return the rules for a request.

        Args:
            tenant: who asks.
            route: path of the endpoint.
            overrides: by rule, of a registered prompt; they beat everything.
            only: all that may run at this route, the same for every request; None: any rule may.

        Raises: InvalidRequestError: a choice names no rule, or its parameters are wrong.
        """
        if overrides:
            return self.registry.rule_set({**self.resolved(tenant, route), **overrides})
        key = (tenant, route)
        found = self._rule_sets.get(key)
        if found is None:
            if len(self._rule_sets) >= _MAX_RULE_SETS:
                self._rule_sets.clear()
            choices = self.resolved(tenant, route)
            if only is not None:
                choices = {name: choice if name in only else Choice(Mode.OFF) for name, choice in choices.items()}
            found = self._rule_sets[key] = self.registry.rule_set(choices)
        return found

    def resolved(self, tenant: str, route: str) -> dict[str, Choice]:
        """Return the choice for every rule."""
        return {rule.name: self._of(rule.name, rule.default, tenant, route) for rule in self.registry.rules}

    def _of(self, name: str, default: Mode, tenant: str, route: str) -> Choice:
        for at_tenant, at_route in ((tenant, route), (tenant, EVERY), (EVERY, route), (EVERY, EVERY)):
            found = self._choices.get(Place(at_tenant, at_route, name))
            if found is None and default is Mode.ON:
                found = self._choices.get(Place(at_tenant, at_route, EVERY))
            if found is not None:
                return found
        return Choice(default)
