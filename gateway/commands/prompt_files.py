"""A prompt as it lies in a file: plain text, or messages as in a chat."""

from __future__ import annotations

from typing import Any

from gateway.commands.json_files import read_array, read_text

FORMATS = ("text", "messages")


def read_prompt(name: str, file_format: str | None) -> dict[str, Any]:
    """Read the `text` or the `messages` of a file; without a format its name decides.

    Text is taken as it is, line ends too: what of it does not matter is the normalizer's to say.

    Raises: AdminError: it cannot be read.
    """
    if (file_format or ("messages" if name.endswith(".json") else "text")) == "messages":
        return {"messages": read_array(name, "--file")}
    return {"text": read_text(name, "--file")}


def read_tools(name: str) -> list[Any]:
    """Read an array of tools.

    Raises: AdminError: it cannot be read.
    """
    return read_array(name, "--tools")
