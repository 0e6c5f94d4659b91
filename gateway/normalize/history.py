"""Earlier bodies as if they had been answered here: how a dry run is told what the stateful rules would remember."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.conversation import Conversation
from gateway.normalize.memory import TurnMemory
from gateway.normalize.recollection import Recollection
from gateway.normalize.registry import RuleSet
from gateway.normalize.rule import Context


def remember_history(bodies: Iterable[Conversation], rules: RuleSet, *, memory: TurnMemory, scope: str) -> None:
    """Normalize earlier conversations in turn and remember each of their assistant turns as returned at its place.

    What rules remember of what they see, such as tools, they remember as they run.

    Args:
        bodies: oldest first, checked.
        rules: those of the dry run.
        memory: of this dry run alone.
        scope: under which the dry run looks.
    """
    for body in bodies:
        recollection = Recollection(memory, scope)
        normalized = rules.normalize(body, Context(scope, recollection))
        for form in (normalized.conversation, normalized.audited):
            for place, message in zip(recollection.places(form), form.messages, strict=False):
                if message.role == "assistant":
                    recollection.remember(place, message)
