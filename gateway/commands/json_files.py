"""JSON as it lies in files that commands are given; `-` is stdin."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, TypeVar

import orjson

from gateway.commands.admin_client import AdminError

STDIN = "-"

T = TypeVar("T")


def read_text(name: str, option: str) -> str:
    """Read a file.

    Raises: AdminError: it cannot be read; names the option that named the file.
    """
    try:
        data = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
        return data.decode()
    except OSError as error:
        raise AdminError(f"{option}: {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise AdminError(f"{option}: {name}: not UTF-8 at byte {error.start}") from error


def read_array(name: str, option: str) -> list[Any]:
    """Read a JSON array.

    Raises: AdminError: it cannot be read, or is none.
    """
    return parsed(read_text(name, option), f"{option}: {name}", list, "a JSON array")


def read_object(name: str, option: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises: AdminError: it cannot be read, or is none.
    """
    return parsed(read_text(name, option), f"{option}: {name}", dict, "a JSON object")


def parsed(text: str, where: str, kind: type[T], wanted: str) -> T:
    """Parse JSON of one kind.

    Raises: AdminError: it is none.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise AdminError(f"{where}: not valid JSON: {error}") from error
    if not isinstance(value, kind):
        raise AdminError(f"{where}: got {type(value).__name__}, wanted {wanted}")
    return value
