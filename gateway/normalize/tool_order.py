"""The order of tools: they are a set, whose entries are called by name."""

from __future__ import annotations

from dataclasses import replace

from gateway.conversation import Conversation
from gateway.normalize.rule import Rule, safe


def canonical_tool_order() -> Rule:
    """Order tools by name. Tools of the same name keep their order, for one of them hides the other.

    What comes first may sway a model: who relies on an order switches this rule off.
    """

    def apply(conversation: Conversation) -> Conversation:
        names = [tool["function"]["name"] for tool in conversation.tools]
        if names == sorted(names):
            return conversation
        tools = sorted(conversation.tools, key=lambda tool: str(tool["function"]["name"]))
        return replace(conversation, tools=tuple(tools))

    return safe("canonical_tool_order", 1, apply, by_region=True)
