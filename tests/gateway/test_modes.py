from __future__ import annotations

import pytest

from gateway.conversation import Conversation, Message
from gateway.errors import InvalidRequestError
from gateway.normalize.modes import EVERY, Place, RuleModes
from gateway.normalize.registry import Choice, RuleRegistry
from gateway.normalize.rule import Mode, Rule, RuleClass, opt_in, refuse_others, safe
from gateway.normalize.rules import built_in_rules

CHAT = "/v1/chat/completions"


def adding(letter: str, make=safe) -> Rule:
    def change(conversation: Conversation) -> Conversation:
        text = conversation.messages[0].content
        assert isinstance(text, str)
        return conversation if letter in text else Conversation((Message("system", text + letter),))

    return make(letter, 1, change)


REGISTRY = RuleRegistry([adding("a"), adding("b"), adding("c", opt_in)])


def text(modes: RuleModes, tenant: str = "t", route: str = CHAT, **overrides: Mode) -> tuple[str, str]:
    """What is forwarded, and what would be if audited rules were on."""
    rules = modes.rule_set(tenant, route, {name: Choice(mode) for name, mode in overrides.items()})
    done = rules.normalize(Conversation((Message("system", "-"),)))
    return str(done.conversation.messages[0].content), str(done.audited.messages[0].content)


def test_safe_rules_are_on_and_opt_in_rules_off_where_nobody_chose() -> None:
    assert text(RuleModes(REGISTRY)) == ("-ab", "-ab")


def test_the_narrowest_choice_wins() -> None:
    off, on = Choice(Mode.OFF), Choice(Mode.ON)
    choices = {Place(EVERY, EVERY, "a"): off, Place(EVERY, CHAT, "a"): on, Place("t", EVERY, "a"): off}
    assert text(RuleModes(REGISTRY, choices)) == ("-b", "-b")
    assert text(RuleModes(REGISTRY, choices), tenant="u") == ("-ab", "-ab")
    assert text(RuleModes(REGISTRY, choices), tenant="u", route="/other") == ("-b", "-b")
    assert text(RuleModes(REGISTRY, choices | {Place("t", CHAT, "a"): on})) == ("-ab", "-ab")
    assert text(RuleModes(REGISTRY, choices), a=Mode.ON, b=Mode.OFF) == ("-a", "-a")


def test_star_stands_for_every_rule_that_is_on_by_default() -> None:
    modes = RuleModes(REGISTRY, {Place(EVERY, EVERY, EVERY): Choice(Mode.OFF)})
    assert text(modes) == ("-", "-")
    assert text(RuleModes(REGISTRY, {Place(EVERY, EVERY, EVERY): Choice(Mode.ON)})) == ("-ab", "-ab")
    narrower = modes.choices | {Place("t", EVERY, "b"): Choice(Mode.ON)}
    assert text(RuleModes(REGISTRY, narrower)) == ("-b", "-b")
    same_place = {Place("t", EVERY, EVERY): Choice(Mode.OFF), Place("t", EVERY, "b"): Choice(Mode.ON)}
    assert text(RuleModes(REGISTRY, same_place)) == ("-b", "-b")


def test_audit_changes_nothing_and_tells_what_would_change() -> None:
    modes = RuleModes(REGISTRY, {Place(EVERY, EVERY, EVERY): Choice(Mode.AUDIT)})
    assert text(modes) == ("-", "-ab")
    done = modes.rule_set("t", CHAT).normalize(Conversation((Message("system", "-b"),)))
    assert (done.fired, done.would_fire) == ((), ("a",))
    assert text(RuleModes(REGISTRY), c=Mode.AUDIT) == ("-ab", "-abc")


def test_audit_of_a_rule_that_would_do_nothing_gives_the_same_object() -> None:
    rules = RuleModes(REGISTRY).rule_set("t", CHAT, {"c": Choice(Mode.AUDIT)})
    done = rules.normalize(Conversation((Message("system", "abc"),)))
    assert done.audited is done.conversation
    assert done.would_fire == ()


def test_replaced_choices_are_in_force_at_once() -> None:
    modes = RuleModes(REGISTRY)
    before = modes.rule_set("t", CHAT)
    assert modes.rule_set("t", CHAT) is before
    modes.replace({Place("t", EVERY, "a"): Choice(Mode.OFF)})
    assert text(modes) == ("-b", "-b")


def test_choices_that_could_not_run_are_refused_by_name() -> None:
    modes = RuleModes(REGISTRY)
    with pytest.raises(InvalidRequestError, match=r"rules\.d: unknown, wanted one of a, b, c"):
        modes.check(Place(EVERY, EVERY, "d"), Choice(Mode.OFF))
    with pytest.raises(InvalidRequestError, match="params: got 'x', wanted none"):
        modes.check(Place(EVERY, EVERY, "a"), Choice(Mode.OFF, {"x": 1}))
    with pytest.raises(InvalidRequestError, match="params: got 'x', wanted none"):
        modes.check(Place(EVERY, EVERY, EVERY), Choice(Mode.OFF, {"x": 1}))
    modes.check(Place(EVERY, EVERY, EVERY), Choice(Mode.OFF))


def test_parameters_reach_the_rule() -> None:
    def build(params):
        refuse_others(params, ("suffix",))
        return lambda conversation, _: Conversation((Message("system", params["suffix"]),))

    registry = RuleRegistry([Rule("r", 1, RuleClass.OPT_IN, build)])
    rules = registry.rule_set({"r": Choice(Mode.ON, {"suffix": "!"})})
    assert rules.normalize(Conversation(())).conversation.messages[0].content == "!"


def test_built_in_rules_follow_their_class() -> None:
    for rule in built_in_rules().rules:
        assert (rule.default is Mode.ON) or rule.rule_class is not RuleClass.SAFE
        assert (rule.default is Mode.OFF) or rule.rule_class is not RuleClass.OPT_IN
