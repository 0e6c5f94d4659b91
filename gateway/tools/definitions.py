"""Checks of tools as clients define them, which all endpoints share.

Two may have the same name, as gateways in front of several servers send them; a call names both. Not so in Anthropic's
messages, where Anthropic refuses them, too.
"""

from __future__ import annotations

import re

from gateway import checks

NAME_PATTERN = "^[a-zA-Z0-9_-]{1,64}$"
"""Of a tool, as OpenAI has it: clients that talk to OpenAI, too, have no others."""
_NAME = re.compile(NAME_PATTERN)


def check_name(field: str, value: object) -> str:
    """Accept the name of a tool."""
    name = checks.text(field, value)
    if _NAME.fullmatch(name) is None:
        checks.refuse(field, name, "1 to 64 letters, digits, _ and -")
    return name


def check_parameters(field: str, value: object) -> None:
    """Accept the schema of a tool's arguments, or none; what it says is handed on as it is."""
    if value is not None:
        checks.mapping(field, value)
