"""How many tokens a prompt may have."""

from __future__ import annotations

from collections.abc import Iterator

DEFAULT_ANSWER_TOKENS = 1024
"""Kept free where a request does not say how long its answer may become, and at most an eighth of the window."""
_NUM_ATTEMPTS = 3
_TIGHTER = 0.75
"""The part of the room that the next attempt has."""


def room_of(window: int, max_tokens: int | None) -> int:
    """Tell how many tokens a prompt may have.

    The answer's share is at least that of a request that says nothing, and rounded up to a power of two: whoever asks for
    a little more or less gets the same cuts.

    Args:
        window: of the model, prompt and answer together.
        max_tokens: asked for; None: nothing was.
    """
    least = min(DEFAULT_ANSWER_TOKENS, window // 8)
    if max_tokens is None or max_tokens <= least:
        return window - least
    rounded = 1 << max(0, max_tokens - 1).bit_length()
    return max(1, window - rounded if 2 * rounded <= window else window - max_tokens)


def rooms_of(window: int, max_tokens: int | None) -> Iterator[tuple[int, bool]]:
    """Give the rooms to try, each with whether it is the last: tighter ones where tokens were estimated too low."""
    room = room_of(window, max_tokens)
    for attempt in range(1, _NUM_ATTEMPTS + 1):
        yield room, attempt == _NUM_ATTEMPTS
        room = int(_TIGHTER * room)
