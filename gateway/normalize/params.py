"""Checks of the parameters that operators give to rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway import checks
from gateway.normalize.rule import Params

_MAX_ENTRIES = 64
_MAX_CHARS = 256


def strings(params: Params, name: str, *, least: int = 0) -> list[str]:
    """Read a list of distinct, non-empty strings; without one it is empty.

    Raises: InvalidRequestError: it is something else, or has too few entries.
    """
    field = f"params.{name}"
    entries = checks.sequence(field, params.get(name, []), most=_MAX_ENTRIES, least=least)
    return [string(f"{field}[{index}]", entry) for index, entry in enumerate(entries)]


def string(field: str, value: Any, choices: Sequence[str] = ()) -> str:
    """Accept a short, non-empty string; one of the choices, where there are any.

    Raises: InvalidRequestError: it is something else.
    """
    if choices:
        return checks.one_of(field, value, choices)
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_CHARS:
        checks.refuse(field, value, f"a string of 1 to {_MAX_CHARS} characters")
    return value
