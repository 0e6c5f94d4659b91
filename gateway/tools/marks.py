"""Marks in text that arrives in pieces."""

from __future__ import annotations


def num_begun(text: str, mark: str) -> int:
    """Count the characters at the end of a text that may be the beginning of a mark."""
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(mark[:size])), 0)
