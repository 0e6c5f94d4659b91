"""Writes tools into the turns of chat templates that do not render them."""

from __future__ import annotations

from importlib.resources import files


def with_tools(template: str, style: str | None) -> str:
    """Put in front of a chat template what writes tools, calls and results into its messages as text.

    Args:
        template: its source. Chats without tools come out as it has them.
        style: `hermes`; None: the template stays as it is.
    """
    if style is None:
        return template
    return files("gateway.tools").joinpath(f"{style}.jinja").read_text(encoding="utf-8") + template
