"""About how many tokens a text has."""

from __future__ import annotations


def estimated_tokens(text: str) -> int:
    """Take four bytes of UTF-8 for a token."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)
