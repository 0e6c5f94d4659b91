"""What was cached for the last requests at their admission, for whoever asks later. Loads no torch."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from engine.request import Request
from prefixcache.interface import Explanation, Prompt

MAX_REQUESTS = 4096
MAX_TOKENS = 4_000_000
"""Of all their prompts together, which are kept to find out who else had the text: 16 MB."""


class Kept(NamedTuple):
    """One admission."""

    request_id: str
    prompt: Prompt
    explanation: Explanation


class Explanations:
    """Bounded; the oldest is forgotten first. A request is asked for by its id, or by the number its blocks carry."""

    def __init__(self, *, max_requests: int = MAX_REQUESTS, max_tokens: int = MAX_TOKENS) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._kept: OrderedDict[int, Kept] = OrderedDict()
        self._numbers: dict[str, int] = {}
        self._num_tokens = 0

    def keep(self, request: Request, explanation: Explanation) -> None:
        """Remember an admission."""
        self._kept[request.arrival] = Kept(request.request_id, request.prompt, explanation)
        self._numbers[request.request_id] = request.arrival
        self._num_tokens += request.num_prompt_tokens
        while len(self._kept) > self._max_requests or self._num_tokens > self._max_tokens:
            number, oldest = self._kept.popitem(last=False)
            self._num_tokens -= len(oldest.prompt.token_ids)
            if self._numbers[oldest.request_id] == number:  # an id may be used again
                del self._numbers[oldest.request_id]

    def of(self, request_id: str) -> Kept | None:
        """Return the newest admission of this id; None: not known (any more)."""
        number = self._numbers.get(request_id)
        return None if number is None else self._kept[number]

    def request_id(self, number: int) -> str | None:
        """Return who has this number."""
        kept = self._kept.get(number)
        return kept.request_id if kept else None
