"""The parameters in `docs/context.md` are those of the policy."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from gateway.context.policy import ContextPolicy

PAGE = Path(__file__).parents[3] / "docs" / "context.md"
ROW = re.compile(r"^\| `(\w+)` \| `?([^|`]+?)`? \|", re.MULTILINE)


def test_every_parameter_is_documented_with_its_default() -> None:
    section = PAGE.read_text().partition("## Parameters")[2].partition("## ")[0]
    defaults = {field.name: str(field.default or 0) for field in fields(ContextPolicy)} | {"exclude_tools": "none"}
    assert dict(ROW.findall(section)) == defaults
