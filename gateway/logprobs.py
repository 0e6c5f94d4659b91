"""Log probabilities of an answer in OpenAI's shape, each sent with the first character of its token.

A character may take several tokens, and text is held back while it may still become a stop string. So a token's entry
waits until text of it goes out, and a token of which a stop string leaves no text has none.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from gateway.backends.base import TokenLogprobs
from gateway.tokenizer import Tokenizer

Entry = dict[str, Any]


class LogprobQueue:
    """Entries of one answer, in the order of its tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._num_chars = 0  # of all tokens
        self._num_sent_chars = 0
        self._waiting: deque[tuple[int, Entry]] = deque()  # with the characters before the token
        self._ready: list[Entry] = []

    def push(self, token_id: int, logprobs: TokenLogprobs, text: str) -> None:
        """Enter a token and the text that became certain with it."""
        self._waiting.append((self._num_chars, entry_of(self._tokenizer, token_id, logprobs)))
        self._num_chars += len(text)

    def send(self, num_chars: int) -> None:
        """So many more characters go out."""
        self._num_sent_chars += num_chars
        while self._waiting and self._waiting[0][0] < self._num_sent_chars:
            self._ready.append(self._waiting.popleft()[1])

    def end(self) -> None:
        """No stop string can take any text back any more."""
        self._ready += [entry for _, entry in self._waiting]
        self._waiting.clear()

    def take(self) -> list[Entry]:
        """Return what can go out and has not yet."""
        ready, self._ready = self._ready, []
        return ready


def entry_of(tokenizer: Tokenizer, token_id: int, logprobs: TokenLogprobs) -> Entry:
    """Print what is said of a token."""
    likeliest = [_named(tokenizer, other, logprob) for other, logprob in logprobs.likeliest]
    return _named(tokenizer, token_id, logprobs.logprob) | {"top_logprobs": likeliest}


def _named(tokenizer: Tokenizer, token_id: int, logprob: float) -> Entry:
    spelled = tokenizer.token_bytes(token_id)
    return {"token": spelled.decode(errors="replace"), "logprob": logprob, "bytes": list(spelled)}
