"""Variables of the chat template that a body sets: `chat_template_kwargs`, and `reasoning_effort` as OpenAI names it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gateway import checks
from gateway.errors import InvalidRequestError

_FIELD = "chat_template_kwargs"
_EFFORT = "reasoning_effort"
_MAX_SWITCHES = 64


def switches_of(fields: Mapping[str, Any], reserved: Collection[str]) -> Mapping[str, Any]:
    """Read the switches of a body.

    Args:
        fields: of the body.
        reserved: names of what the template is given anyway.

    Raises: InvalidRequestError: they are no object, too many or too deep, or one has a reserved name.
    """
    given = {} if fields.get(_FIELD) is None else checks.mapping(_FIELD, fields[_FIELD])
    if len(given) > _MAX_SWITCHES:
        checks.refuse(_FIELD, given, f"at most {_MAX_SWITCHES} names")
    for name in given:
        if name in reserved:
            raise InvalidRequestError(
                f"{_FIELD}.{name}: got a name that the server itself sets, wanted another one", param=f"{_FIELD}.{name}"
            )
    checks.shallow(_FIELD, given)
    if fields.get(_EFFORT) is None:
        return given
    return {_EFFORT: checks.text(_EFFORT, fields[_EFFORT]), **given}
