"""What a client's wishes and the context policy leave of a chat in a dry run: step by step as `Ingress` has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.context.asked import ContextAsked
from gateway.context.clearing import Cleared
from gateway.context.editor import ContextEditor, room_of, rooms_of
from gateway.context.estimate import estimated_tokens
from gateway.context.report import ContextReport
from gateway.context.rule import context_policy_in
from gateway.context.units import Counter
from gateway.conversation import Conversation
from gateway.normalize.memory import TurnMemory
from gateway.normalize.registry import RuleSet
from gateway.normalize.rule import Mode

Json = dict[str, Any]
Render = Callable[[Conversation], Json]
"""Gives `token_ids` among others; None: it cannot be rendered."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What of a body decides about its chat's length."""

    wishes: ContextAsked
    window: int
    """Tokens of prompt and answer together."""
    max_tokens: int | None
    """Of an answer that must have them; None: it may have the room that is left."""

    def fits(self, token_ids: list[int] | None) -> bool:
        """Whether a prompt and its answer do."""
        if token_ids is None:
            return False
        room = self.window - len(token_ids)
        return room >= (self.max_tokens != 0) and (self.max_tokens is None or self.max_tokens <= room)


@dataclass(frozen=True, slots=True)
class Trial:
    """What would be sent."""

    conversation: Conversation
    rendered: Json
    report: ContextReport | None = None
    """None: neither the client nor the policy leaves anything out, whatever comes."""


def try_context(canonical: Conversation, rules: RuleSet, asked: Asked, render: Render, count: Counter) -> Trial:
    """Leave out of a chat in canonical form what a request would leave out.

    Nothing is remembered, and no summary is written by the model: where it would be, the extractive one is shown.
    """
    wishes, editor = asked.wishes, ContextEditor(count, TurnMemory())
    cleared = wishes.clear(canonical, estimated_tokens) if wishes.is_asked else Cleared(canonical)
    trial = _cut(cleared.conversation, rules, asked, render, editor)
    num_tokens = _num_tokens(trial.rendered)
    if wishes.is_asked:
        report = trial.report or ContextReport.of_whole(num_tokens)
        return Trial(trial.conversation, trial.rendered, report.behind(cleared, 0.0))
    if (policy := context_policy_in(rules, Mode.AUDIT)) is not None:
        fitted = editor.audit(canonical, policy, room_of(asked.window, asked.max_tokens), "")
        return Trial(canonical, trial.rendered, ContextReport.of(Mode.AUDIT, fitted, num_tokens, 0.0))
    return trial


def _cut(conversation: Conversation, rules: RuleSet, asked: Asked, render: Render, editor: ContextEditor) -> Trial:
    policy = asked.wishes.policy_in(rules)
    if policy is None:
        return Trial(conversation, render(conversation))
    for room, is_last in rooms_of(asked.window, asked.max_tokens):
        fitted = editor.edit(conversation, policy, room, "")
        rendered = render(fitted.conversation)
        if is_last or asked.fits(rendered["token_ids"]):
            report = ContextReport.of(Mode.ON, fitted, _num_tokens(rendered), 0.0)
            return Trial(fitted.conversation, rendered, report)
    raise AssertionError("unreachable")


def _num_tokens(rendered: Json) -> int:
    return len(rendered["token_ids"] or ())
