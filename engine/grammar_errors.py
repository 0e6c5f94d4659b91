"""What llguidance says of a grammar, in words that help who wrote it."""

from __future__ import annotations

import re

_MATCHES_NOTHING = "it matches nothing: a reference or rule leads only to itself, or a pattern excludes every character"
_IN_LARK = re.compile(r"(?:at )?(\d+)\(\d+\): (?=failed to compile JSON schema)")
_MAX_PATTERN_CHARS = 100


def plain_message(message: str) -> str:
    """Say in one line what is wrong; what llguidance tells of its own state behind that helps nobody else."""
    first, *rest = message.strip().split("\n")
    if first == "NoExtensionBias":
        return _MATCHES_NOTHING
    if first.endswith("regex parse error:"):
        pattern = rest[0].strip()[:_MAX_PATTERN_CHARS] if rest else ""
        where = "" if pattern in first else f", in {pattern}"
        first += "".join(f" {line.removeprefix('error: ')}{where}" for line in rest if line.startswith("error: "))
    schema = _IN_LARK.match(first)
    rule = re.search(rf"^ *{schema[1]} \| (\w+):", message, re.MULTILINE) if schema else None
    return first if schema is None or rule is None else f"in {rule[1]}: {first[schema.end() :]}"
