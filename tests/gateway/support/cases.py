"""Pairs of requests that must share a prompt prefix, or must not: one for each cause of a miss that people report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gateway.support.chats import Body

ALL = 10_000
"""Shares every message, and the tools."""
_FILE = Path(__file__).parent.parent / "cases" / "normalizer.jsonl"

REGISTERED: Mapping[str, Mapping[str, Any]] = {
    "relocate_volatile": {
        "patterns": [r"Now: \d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}", r"conf-[0-9a-f]{6}\.toml", r"Folder: \S+"],
        "tags": ["session", "left"],
    },
    "sort_tagged_lists": {"tags": ["topics"]},
    "image_digest": {
        "digests": {f"https://files.example/map.png?sig={sign}": "sha256:" + "5c" * 32 for sign in ("aa", "bb")}
    },
}
"""What operators declare for the cases, by rule; used with the negative ones, too."""


@dataclass(frozen=True, slots=True)
class Case:
    """Requests, and how much of the first one each other shares with it."""

    name: str
    rule: str
    """That decides it; `none`: nothing may repair it."""
    bodies: Sequence[Body]
    shared: int
    """Leading messages that are byte-identical after normalizing."""
    on: str | None
    """A rule that has to be switched on; None: the defaults decide."""
    shared_by_default: int
    """With a rule to switch on: what is shared without it."""
    tools_shared: bool | None
    must_differ: Sequence[str | int]
    """Path in the body to a value that stays another one."""
    is_negative: bool
    tenants: Sequence[str]


def load_cases() -> list[Case]:
    """Read all cases."""
    return [_case(json.loads(line)) for line in _FILE.read_text(encoding="utf-8").splitlines()]


def _case(entry: dict[str, Any]) -> Case:
    return Case(
        name=entry["name"],
        rule=entry["rule"],
        bodies=entry["bodies"],
        shared=ALL if entry["shared"] == "all" else entry["shared"],
        on=entry.get("on"),
        shared_by_default=entry.get("shared_by_default", 0),
        tools_shared=entry.get("tools_shared"),
        must_differ=entry.get("must_differ", ()),
        is_negative=entry.get("negative", False),
        tenants=entry.get("tenants", ["t"] * len(entry["bodies"])),
    )
