"""Eviction policies. Each is a sort key: blocks with a lower one go first, equal ones by least recent use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

Policy = Callable[[int], int]
"""Priority of a block (0: nobody asked for it) -> sort key."""


def lru(priority: int) -> int:  # noqa: ARG001 - a policy is free not to look
    """Recency alone."""
    return 0


def by_priority(priority: int) -> int:
    """Priority, then recency."""
    return priority


POLICIES: Mapping[str, Policy] = MappingProxyType({"lru": lru, "priority": by_priority})
