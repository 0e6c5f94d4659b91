"""Tools in the rendering in which this scope sent them first: a set has no order, so one is as good as another.

Unlike an alphabetical order this leaves every client alone that never changes its mind, and keeps an order that some
author chose. Other gateways do not know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from gateway.conversation import Conversation
from gateway.normalize.recollection import Recollection, digest_of
from gateway.normalize.rule import Mode, Rule, stateful


def first_seen() -> Rule:
    """Give tools the order in which the same set of names came first, and loose ones the order of keys that came first.

    A strict tool stays as it is, for its arguments are written in the order of its schema. So does the order of all
    arrays in a schema.
    """

    def apply(conversation: Conversation, memory: Recollection) -> Conversation:
        if not conversation.tools:
            return conversation
        tools = _in_first_order([_in_first_rendering(tool, memory) for tool in conversation.tools], memory)
        if orjson.dumps(tools) == orjson.dumps(conversation.tools):
            return conversation
        return replace(conversation, tools=tuple(tools))

    return replace(stateful("first_seen", 1, apply, Mode.OFF), supersedes=frozenset({"canonical_tool_order"}))


def _in_first_rendering(tool: Mapping[str, Any], memory: Recollection) -> Mapping[str, Any]:
    if tool.get("strict") or tool["function"].get("strict"):
        return tool
    first: Mapping[str, Any] = memory.keep_first(digest_of("first_seen_tool", tool), tool)
    return first if first == tool else tool


def _in_first_order(tools: list[Mapping[str, Any]], memory: Recollection) -> list[Mapping[str, Any]]:
    names = [_name(tool) for tool in tools]
    if len(set(names)) != len(names):
        return tools  # which of two with one name comes first may be meant
    first: tuple[str, ...] = memory.keep_first(digest_of("first_seen_order", sorted(names)), tuple(names))
    rank = {name: number for number, name in enumerate(first)}
    return sorted(tools, key=lambda tool: rank[_name(tool)]) if rank.keys() == set(names) else tools


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool["function"]["name"])
