"""A prompt as it lies in a file: plain text, or messages as in a chat."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson

from gateway.commands.admin_client import AdminError

FORMATS = ("text", "messages")
STDIN = "-"


def read_prompt(name: str, file_format: str | None) -> dict[str, Any]:
    """Read the `text` or the `messages` of a file; without a format its name decides.

    Text is taken as it is, line ends too: what of it does not matter is the normalizer's to say.

    Raises: AdminError: it cannot be read.
    """
    if (file_format or ("messages" if name.endswith(".json") else "text")) == "messages":
        return {"messages": _read_array(name, "--file")}
    return {"text": _read(name, "--file")}


def read_tools(name: str) -> list[Any]:
    """Read an array of tools.

    Raises: AdminError: it cannot be read.
    """
    return _read_array(name, "--tools")


def _read_array(name: str, option: str) -> list[Any]:
    try:
        value = orjson.loads(_read(name, option))
    except orjson.JSONDecodeError as error:
        raise AdminError(f"{option}: {name}: not valid JSON: {error}") from error
    if not isinstance(value, list):
        raise AdminError(f"{option}: {name}: got {type(value).__name__}, wanted a JSON array")
    return value


def _read(name: str, option: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
        return data.decode()
    except OSError as error:
        raise AdminError(f"{option}: {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise AdminError(f"{option}: {name}: not UTF-8 at byte {error.start}") from error
