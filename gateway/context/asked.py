"""What a client asks for about the context of its own chat."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.context.clearing import Cleared, ToolClearing, clear_tool_uses
from gateway.context.history import History
from gateway.context.policy import ContextPolicy, policy_of
from gateway.context.rule import NAME
from gateway.context.thoughts import clear_thoughts
from gateway.context.units import Counter
from gateway.conversation import Conversation
from gateway.normalize.registry import RuleSet
from gateway.normalize.rule import Mode


@dataclass(frozen=True, slots=True)
class ContextAsked:
    """It adds to what the operator's policy does, and takes nothing from it."""

    tools: ToolClearing | None = None
    thinking_turns: int | None = None
    """The last ones that keep their thoughts; None: all do."""
    cuts: bool = False
    """As the policy cuts, even where it is not on."""
    cut_above: int = 0
    """Tokens, by estimate, if that is lower than the policy's high watermark; 0: it is not."""
    is_asked: bool = False
    """Whether the body says anything of it: then so does the answer."""

    def policy_in(self, rules: RuleSet) -> ContextPolicy | None:
        """Give the policy that cuts this chat: with the operator's parameters, if there are any; None: none does."""
        mode = rules.mode_of(NAME)
        if mode is not Mode.ON and not self.cuts:
            return None
        policy = ContextPolicy() if mode is Mode.OFF else policy_of(rules.params_of(NAME))
        bounds = [bound for bound in (self.cut_above, policy.cut_above) if bound]
        return replace(policy, cut_above=min(bounds, default=0))

    def clear(self, conversation: Conversation, count: Counter) -> Cleared:
        """Clear what is asked for.

        Args:
            conversation: in canonical form.
            count: see `Counter`.
        """
        cleared = Cleared(conversation)
        if self.tools is not None:
            history = History(conversation, count, document_tokens=_NO_DOCUMENT)
            cleared = clear_tool_uses(history, self.tools, count)
        if self.thinking_turns is not None:
            cleared = cleared.then(clear_thoughts(cleared.conversation, self.thinking_turns, count))
        return cleared


_NO_DOCUMENT = 2**31
"""Nothing is looked at as a document."""
