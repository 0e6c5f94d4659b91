"""Pydantic's findings in the words of this house: what was wanted, without the library's manner of speaking."""

from __future__ import annotations

from pydantic_core import ErrorDetails


def wanted(details: ErrorDetails) -> str:
    """Say what a value should have been."""
    message = details["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return message.partition(", unable to parse")[0]
