"""Checks of single JSON values. Each takes the field's name and a value, and returns it or says what was wanted.

Knows nothing of what the fields mean. `None` never gets here: a null field counts as absent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

from gateway.errors import InvalidRequestError, shown

MAX_DEPTH = 64
"""Levels of nesting in values that are handed on whole (tools, tool calls): far above real ones, and below what would
exhaust Python's stack in a template."""


def refuse(field: str, value: object, wanted: str) -> NoReturn:
    """Raise the error that names the field, what came and what was wanted."""
    raise InvalidRequestError(f"{field}: got {shown(value)}, wanted {wanted}", param=field)


def boolean(field: str, value: object) -> bool:
    """Accept true and false only."""
    if not isinstance(value, bool):
        refuse(field, value, "true or false")
    return value


def integer(field: str, value: object, *, low: int, high: int | None = None) -> int:
    """Accept a whole number written without a fraction, in [low, high]."""
    wanted = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"
    if not isinstance(value, int) or isinstance(value, bool):
        refuse(field, value, wanted)
    if value < low or (high is not None and value > high):
        refuse(field, value, wanted)
    return value


def number(field: str, value: object, *, low: float, high: float) -> float:
    """Accept a finite number in [low, high]."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        refuse(field, value, f"a number from {low:g} to {high:g}")
    if not math.isfinite(value) or not low <= value <= high:
        refuse(field, value, f"a number from {low:g} to {high:g}")
    return float(value)


def text(field: str, value: object) -> str:
    """Accept a string."""
    if not isinstance(value, str):
        refuse(field, value, "a string")
    return value


def mapping(field: str, value: object) -> dict[str, Any]:
    """Accept a JSON object."""
    if not isinstance(value, dict):
        refuse(field, value, "an object")
    return value


def sequence(field: str, value: object, *, most: int, least: int = 0) -> list[Any]:
    """Accept an array of `least` to `most` entries."""
    if not isinstance(value, list):
        refuse(field, value, "an array")
    if not least <= len(value) <= most:
        refuse(field, value, f"{least} to {most} entries")
    return value


def one_of(field: str, value: object, choices: Sequence[str]) -> str:
    """Accept one of a few strings."""
    if not isinstance(value, str) or value not in choices:
        refuse(field, value, "one of " + ", ".join(choices))
    return value


def shallow(field: str, value: object) -> None:
    """Refuse a value nested deeper than `MAX_DEPTH`, without recursing into it."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        level = [child for entry in level for child in _children(entry)]
        if not level:
            return
    refuse_depth(field)


def refuse_depth(field: str) -> NoReturn:
    """Raise the error of a value that is nested too deep."""
    raise InvalidRequestError(
        f"{field}: got more than {MAX_DEPTH} levels of nesting, wanted at most {MAX_DEPTH}", param=field
    )


def _children(value: object) -> Sequence[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else ()
