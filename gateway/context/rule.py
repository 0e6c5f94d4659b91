"""The policy as a rule of the registry: so it is turned on, for whom and with what, as all rules are."""

from __future__ import annotations

from gateway.context.policy import ContextPolicy, policy_of
from gateway.conversation import Conversation
from gateway.normalize.modes import RuleModes
from gateway.normalize.registry import RuleSet
from gateway.normalize.rule import Apply, Context, Mode, Params, Rule, RuleClass

NAME = "context_policy"


def context_policy(default: Mode = Mode.OFF) -> Rule:
    """Make the rule; it changes nothing by itself, for a cut depends on the model and comes behind all rules."""
    return Rule(NAME, 1, RuleClass.CONTEXT, _build, default)


def context_policy_in(rules: RuleSet, mode: Mode = Mode.ON) -> ContextPolicy | None:
    """Return the policy that is on, or in audit mode; None: none is."""
    return policy_of(rules.params_of(NAME)) if rules.mode_of(NAME) is mode else None


def is_on_somewhere(modes: RuleModes) -> bool:
    """Whether the policy is on for anybody, registered prompts aside."""
    chosen = [choice.mode for place, choice in modes.choices.items() if place.rule == NAME]
    return Mode.ON in [*chosen, *(rule.default for rule in modes.registry.rules if rule.name == NAME)]


def _build(params: Params) -> Apply:
    policy_of(params)
    return _keep


def _keep(conversation: Conversation, _: Context) -> Conversation:
    return conversation
