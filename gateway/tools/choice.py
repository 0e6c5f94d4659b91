"""Which tools a client wants called: `tool_choice` and its companions, in either provider's words."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gateway import checks
from gateway.errors import InvalidRequestError, shown


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What a client wants."""

    may_call: bool = True
    """Else what looks like a call is text; the tools are rendered all the same, so the prefix stays what it was."""
    must_call: bool = False
    name: str | None = None
    """The only tool that may be called; None: any."""
    is_parallel: bool = True
    """Whether an answer may hold several calls."""

    def check(self, names: Collection[str]) -> None:
        """Hold a choice to the tools that there are.

        Raises: InvalidRequestError: there is no such tool, or none at all.
        """
        if not self.must_call:
            return
        if not names:
            raise InvalidRequestError(
                "tool_choice: got one that asks for a call, wanted it only beside tools", param="tool_choice"
            )
        if self.name is not None and self.name not in names:
            raise InvalidRequestError(
                f"tool_choice: got the tool {shown(self.name)}, wanted one of {', '.join(sorted(names))[:200]}",
                param="tool_choice",
            )


ANY_CALLS = ToolChoice()


def read_openai(fields: Mapping[str, Any]) -> ToolChoice:
    """Check `tool_choice` and `parallel_tool_calls` of a chat body.

    Raises: InvalidRequestError: what is wrong.
    """
    is_parallel = checks.boolean("parallel_tool_calls", fields.get("parallel_tool_calls", True))
    choice = fields.get("tool_choice", "auto")
    if isinstance(choice, dict):
        check_kind(choice.get("type"))
        function = checks.mapping("tool_choice.function", choice.get("function"))
        return ToolChoice(
            must_call=True,
            name=checks.text("tool_choice.function.name", function.get("name")),
            is_parallel=False,
        )
    if not isinstance(choice, str) or choice not in ("auto", "none", "required"):
        checks.refuse("tool_choice", choice, "auto, none, required or an object that names a function")
    return ToolChoice(choice != "none", choice == "required", is_parallel=is_parallel)


def check_kind(value: object) -> None:
    """Accept the kind of a `tool_choice` of OpenAI's that is an object."""
    if value != "function":
        wanted = "function, or in place of the object auto, none or required: this server takes no allowed_tools"
        checks.refuse("tool_choice.type", value, wanted)


def read_anthropic(fields: Mapping[str, Any]) -> ToolChoice:
    """Check `tool_choice` of a messages body.

    Raises: InvalidRequestError: what is wrong.
    """
    if "tool_choice" not in fields:
        return ANY_CALLS
    choice = checks.mapping("tool_choice", fields["tool_choice"])
    kind = checks.one_of("tool_choice.type", choice.get("type"), ("auto", "any", "tool", "none"))
    is_serial = choice.get("disable_parallel_tool_use", False)
    return ToolChoice(
        may_call=kind != "none",
        must_call=kind in ("any", "tool"),
        name=checks.text("tool_choice.name", choice.get("name")) if kind == "tool" else None,
        is_parallel=kind != "tool" and not checks.boolean("tool_choice.disable_parallel_tool_use", is_serial),
    )
