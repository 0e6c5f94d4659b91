"""What a rule of the normalizer is. Knows no rule and no order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gateway.conversation import Conversation
from gateway.errors import InvalidRequestError, shown
from gateway.normalize.recollection import Recollection


class RuleClass(StrEnum):
    """How a rule is switched on."""

    SAFE = "safe"
    """On for everybody: it may change bytes the model sees, never meaning."""
    OPT_IN = "opt_in"
    """On where the operator asks for it."""
    STATEFUL = "stateful"
    """Needs memory of what was returned or seen earlier."""
    CONTEXT = "context"
    """Decides what of a long chat is sent. Runs behind all others, and not by the normalizer."""


class Mode(StrEnum):
    """What is done with a rule."""

    OFF = "off"
    AUDIT = "audit"
    """It changes nothing; what it would have changed, and saved, is reported."""
    ON = "on"


@dataclass(frozen=True, slots=True)
class Context:
    """What a rule may know beside the conversation."""

    scope: str = ""
    """Whose conversation it is: nothing remembered for one scope is ever used for another."""
    memory: Recollection | None = None
    """What is remembered for this scope; None: nothing is, as where a prompt is registered."""
    open_slots: Mapping[str, str] = field(default_factory=dict)
    """Name -> value of the slots of a registered prompt whose marks, `{{name}}`, still stand in the head."""


Apply = Callable[[Conversation, Context], Conversation]
"""Pure but for its memory, and idempotent. Gives back the same object where it has nothing to do, and only there: the
order of keys counts, so no comparison could tell."""

Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """One named way to bring a conversation nearer to its canonical form."""

    name: str
    version: int
    """Raised whenever the output changes."""
    rule_class: RuleClass
    build: Callable[[Params], Apply]
    """Make it ready to run with an operator's parameters.

    Raises: InvalidRequestError: a parameter is unknown, missing or wrong; `param` begins with `params`.
    """
    default: Mode = Mode.OFF
    """The mode where nobody chose another one."""
    by_region: bool = False
    """System head and tools come out the same whatever the turns are, and the turns whatever those are. So a head that
    was seen before need not be changed again."""
    audit_params: Params = field(default_factory=dict)
    """What is assumed in audit mode where nobody gave parameters: what the rule finds on its own."""
    supersedes: frozenset[str] = frozenset()
    """Rules that do not run where this one does, for they would undo it."""


def safe(name: str, version: int, change: Callable[[Conversation], Conversation], *, by_region: bool = False) -> Rule:
    """Make a rule that is on for everybody and takes no parameters."""
    return Rule(name, version, RuleClass.SAFE, without_params(change), Mode.ON, by_region)


def opt_in(name: str, version: int, change: Callable[[Conversation], Conversation], *, by_region: bool = False) -> Rule:
    """Make a rule that operators turn on and that takes no parameters."""
    return Rule(name, version, RuleClass.OPT_IN, without_params(change), by_region=by_region)


def stateful(
    name: str, version: int, change: Callable[[Conversation, Recollection], Conversation], default: Mode
) -> Rule:
    """Make a rule that takes no parameters and works where there is a memory."""

    def build(params: Params) -> Apply:
        refuse_others(params, ())
        return lambda conversation, context: change(conversation, context.memory) if context.memory else conversation

    return Rule(name, version, RuleClass.STATEFUL, build, default)


def without_params(change: Callable[[Conversation], Conversation]) -> Callable[[Params], Apply]:
    """Build a rule that needs neither parameters nor context."""

    def build(params: Params) -> Apply:
        refuse_others(params, ())
        return lambda conversation, _: change(conversation)

    return build


def refuse_others(params: Params, known: tuple[str, ...]) -> None:
    """Refuse a parameter that the rule does not know.

    Raises: InvalidRequestError: which one.
    """
    for name in params:
        if name not in known:
            wanted = ", ".join(known) or "none"
            raise InvalidRequestError(f"params: got {shown(name)}, wanted {wanted}", param=f"params.{name}")
